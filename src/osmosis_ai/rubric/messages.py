"""What the figures of a trust report say, in plain sentences.

Words of judgement follow published bars, and only those: Krippendorff 2004, "Content Analysis",
p. 241 for alpha (0.8 to rely on, 0.667 for tentative conclusions); Koo and Li 2016, "A Guideline of
Selecting and Reporting Intraclass Correlation Coefficients" for intraclass correlations; Landis and
Koch 1977, "The Measurement of Observer Agreement for Categorical Data" for kappa. What is
graded is the lower bound of the interval, not the point, and nothing under 20 records. An effect is stated as
one only when its interval excludes zero.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from osmosis_ai.rubric.agreement import Intraclass
from osmosis_ai.rubric.biases import LengthBias
from osmosis_ai.rubric.calibration import Bin, Calibration
from osmosis_ai.rubric.estimate import CONFIDENCE, LEAST_GRADED, TrustEstimate
from osmosis_ai.rubric.panel import LeftOut, Pair, Panel
from osmosis_ai.rubric.spread import Spread

RELIABLE, TENTATIVE = 0.8, 0.667


@dataclass(frozen=True, slots=True)
class Wording:
    """Writes the sentences of one session."""

    low: float
    high: float
    runs: int

    def points(self, value: float | None, *, sign: bool = False) -> str:
        """Return a score, or a difference of scores, with three digits of the scale."""
        if value is None:
            return "–"
        digits = min(6, max(0, 3 - max(0, math.ceil(math.log10(self.high - self.low)))))
        # A difference too small to show is no negative zero.
        shown = round(value, digits) + 0.0
        return f"{shown:+.{digits}f}" if sign and shown else f"{shown:.{digits}f}"

    @staticmethod
    def coefficient(value: float | None) -> str:
        """Return a correlation or a reliability with two digits; none too small to show is a negative zero."""
        return "–" if value is None else f"{round(value, 2) + 0.0:.2f}"

    def mean(self, figure: TrustEstimate, model: str) -> TrustEstimate:
        """Word a judge's mean score."""
        over = f"{_number(figure.scores, 'score')} of {_number(figure.records, 'record')}"
        text = f"{model} scores {self.points(figure.value)} on average{self._spread(figure)}, over {over}."
        if self.runs > 1:
            text += " The interval counts records: repeated calls of one record are no new evidence."
        return figure.saying(text)

    def spread(self, spread: Spread) -> Spread:
        """Word how far repeated scores lie apart."""
        within, same = spread.within, spread.unchanged
        over = f"over {_number(within.records, 'record')} scored more than once"
        typical = f"A call lies {self.points(within.value)} from its record's mean (standard deviation)"
        return replace(
            spread,
            within=within.saying(f"{typical}{self._spread(within)}, {over}."),
            unchanged=same.saying(
                f"{percent(same.value)} of {_number(same.records, 'record')} scored more than once got the same "
                f"score every time."
            ),
        )

    def retest_alpha(self, figure: TrustEstimate) -> TrustEstimate:
        """Word Krippendorff's alpha over repeated calls."""
        text = f"Repeated calls {alpha_word(figure)}: Krippendorff's alpha {_coefficient(figure)}"
        return figure.saying(f"{text}, over {_over(figure)}; 1 is perfect agreement, 0 is chance.")

    def ordinal_alpha(self, figure: TrustEstimate) -> TrustEstimate:
        """Word Krippendorff's alpha on ranks."""
        text = f"By order alone Krippendorff's alpha is {_coefficient(figure)}, over {_over(figure)}."
        return figure.saying(text)

    def retest(self, retest: Intraclass) -> Intraclass:
        """Word the intraclass correlations of repeated calls."""
        single, average = retest.single, retest.average
        return Intraclass(
            single.saying(
                f"A single call is {icc_word(single)}: ICC(1,1) {_coefficient(single)}, the share of the "
                f"variance of scores that lies between records, over {_over(single)}."
            ),
            average.saying(
                f"The mean of {self.runs} runs is {icc_word(average)}: ICC(1,{self.runs}) "
                f"{_coefficient(average)}, over {_over(average)}."
            ),
        )

    def calibration(self, found: Calibration, who: str) -> Calibration:
        """Word a judge against people."""
        over = _number(found.bias.records, "record") + " that people scored"
        categories = f"the categories {', '.join(found.levels)}"
        kappa, weighted = found.kappa, found.weighted_kappa
        return replace(
            found,
            pearson=found.pearson.saying(
                f"Pearson's correlation of {who} with people is {_coefficient(found.pearson)}, over "
                f"{_number(found.pearson.records, 'record')}."
            ),
            spearman=found.spearman.saying(
                f"{who} orders records as people do with a Spearman correlation of "
                f"{_coefficient(found.spearman)}, over {_number(found.spearman.records, 'record')}."
            ),
            kappa=kappa.saying(
                f"On {categories}, agreement beyond chance is {kappa_word(kappa)}: Cohen's kappa "
                f"{_coefficient(kappa)}, over {over}."
            ),
            weighted_kappa=weighted.saying(
                f"With near misses counted as such, agreement is {kappa_word(weighted)}: quadratic-weighted "
                f"kappa {_coefficient(weighted)}, over {over}."
            ),
            exact=found.exact.saying(
                f"{who} and people chose the same category for {percent(found.exact.value)} of {over}."
            ),
            mean_absolute_error=found.mean_absolute_error.saying(
                f"{who} is {self.points(found.mean_absolute_error.value)} away from people on average"
                f"{self._spread(found.mean_absolute_error)}, on a scale of {self.low:g} to {self.high:g}, over {over}."
            ),
            bias=found.bias.saying(f"{self._against_people(found.bias, who)}, over {over}."),
            bins=tuple(self._bin(place, who) for place in found.bins),
        )

    def length(self, found: LengthBias) -> LengthBias:
        """Word how the score goes with the length of the text."""
        per = found.per_doubling
        beyond = (
            ", beyond what it adds to people's"
            if found.against_people
            else "; longer texts may simply be better"
        )
        adds = f"Twice the length adds {self.points(per.value, sign=True)}{self._spread(per)} to the score"
        return replace(
            found,
            correlation=found.correlation.saying(
                f"{_effect(found.correlation, 'Longer texts score')}: Spearman {_coefficient(found.correlation)}, "
                f"over {_number(found.correlation.records, 'record')}; longer texts may simply be better."
            ),
            controlled=found.controlled.saying(
                f"{_effect(found.controlled, 'At the same score by people, longer texts score')}: partial correlation "
                f"{_coefficient(found.controlled)}, over {_number(found.controlled.records, 'record')}."
            ),
            per_doubling=per.saying(f"{adds}{beyond}, over {_number(per.records, 'record')}."),
        )

    def order_in_file(self, figure: TrustEstimate) -> TrustEstimate:
        """Word whether the score goes with the place in the file."""
        text = _effect(figure, "Against people, records further down the file score")
        over = _number(figure.records, "record")
        return figure.saying(f"{text}: Spearman {_coefficient(figure)}, over {over}.")

    def position(self, figure: TrustEstimate, presentations: Sequence[str] | None) -> TrustEstimate:
        """Word whether the order of the quoted blocks matters."""
        if figure.value is None or presentations is None:
            return figure
        first, second = list(dict.fromkeys(presentations))[:2]
        text = self._above(figure, f"With its texts quoted {first} a record", f"quoted {second}")
        return figure.saying(f"{text}, over {_number(figure.records, 'record')} scored both ways.")

    def panel(self, panel: Panel) -> Panel:
        """Word the agreement of several judges."""
        judges = len(panel.left_out)
        alpha, absolute, consistency = panel.alpha, panel.absolute, panel.consistency
        mean, median = panel.consensus, panel.consensus_median
        return replace(
            panel,
            alpha=alpha.saying(
                f"The {judges} judges {alpha_word(alpha)}: Krippendorff's alpha {_coefficient(alpha)}, over "
                f"{_number(alpha.records, 'record')} scored by at least two of them."
            ),
            alpha_ordinal=self.ordinal_alpha(panel.alpha_ordinal),
            absolute=Intraclass(
                self._icc(absolute.single, "One judge's value stands for any other's", "ICC(2,1)"),
                self._icc(absolute.average, f"The mean of the {judges} judges", f"ICC(2,{judges})"),
            ),
            consistency=Intraclass(
                self._icc(consistency.single, "Whatever each judge's level, one judge", "ICC(3,1)"),
                self._icc(
                    consistency.average, f"Whatever their levels, the mean of {judges}", f"ICC(3,{judges})"
                ),
            ),
            consensus=mean.saying(
                f"The panel scores {self.points(mean.value)} on average{self._spread(mean)}, each judge with one "
                f"vote, over {_number(mean.records, 'record')}."
            ),
            consensus_median=median.saying(
                f"By the median of the judges it is {self.points(median.value)}{self._spread(median)}, over "
                f"{_number(median.records, 'record')}."
            ),
            pairs=tuple(self._pair(pair) for pair in panel.pairs),
            left_out=tuple(self._left_out(judge) for judge in panel.left_out),
        )

    def _pair(self, pair: Pair) -> Pair:
        both = f"{pair.first} and {pair.second}"
        over = f"over {_number(pair.difference.records, 'record')} that both scored"
        above = self._above(pair.difference, pair.first, pair.second)
        return replace(
            pair,
            pearson=pair.pearson.saying(
                f"{both} correlate with {_coefficient(pair.pearson)} (Pearson), {over}."
            ),
            spearman=pair.spearman.saying(
                f"{both} order records alike with {_coefficient(pair.spearman)} (Spearman), {over}."
            ),
            difference=pair.difference.saying(f"{above}, {over}."),
        )

    def _left_out(self, judge: LeftOut) -> LeftOut:
        over = f"over {_number(judge.difference.records, 'record')} that another judge scored too"
        distance = judge.mean_absolute_difference
        return replace(
            judge,
            pearson=judge.pearson.saying(
                f"{judge.model} correlates with the mean of the others with {_coefficient(judge.pearson)} (Pearson), {over}."
            ),
            spearman=judge.spearman.saying(
                f"{judge.model} orders records as the others do with {_coefficient(judge.spearman)} (Spearman), {over}."
            ),
            difference=judge.difference.saying(
                f"{self._above(judge.difference, judge.model, 'the others')}, {over}."
            ),
            mean_absolute_difference=distance.saying(
                f"{judge.model} is {self.points(distance.value)} away from the others on average"
                f"{self._spread(distance)}, {over}."
            ),
        )

    def _icc(self, figure: TrustEstimate, subject: str, name: str) -> TrustEstimate:
        over = f"over {_number(figure.records, 'record')} that every judge scored"
        return figure.saying(f"{subject}: {icc_word(figure)}, {name} {_coefficient(figure)}, {over}.")

    def _bin(self, place: Bin, who: str) -> Bin:
        over = _number(place.bias.records, "record")
        text = f"Where {who} says {place.name}, people say {self.points(place.people)} on average"
        off = f"the judge is off by {self.points(place.bias.value, sign=True)}{self._spread(place.bias)}"
        return replace(place, bias=place.bias.saying(f"{text}: {off}, over {over}."))

    def _above(self, figure: TrustEstimate, first: str, second: str) -> str:
        shift = f"{self.points(figure.value, sign=True)}{self._spread(figure)}"
        return f"{_effect(figure, f'{first} scores')} than {second}: {shift}"

    def _against_people(self, figure: TrustEstimate, who: str) -> str:
        shift = f"{self.points(figure.value, sign=True)}{self._spread(figure)} against people"
        if figure.low is None:
            return f"Whether {who} is lenient or severe cannot be told: {shift}"
        if not figure.excludes_zero:
            return f"{who} is neither clearly lenient nor severe: {shift}"
        return f"{who} is {'lenient' if (figure.value or 0) > 0 else 'severe'}: {shift}"

    def _spread(self, figure: TrustEstimate) -> str:
        if figure.low is None or figure.high is None:
            return ""
        return f" (95 % interval {self.points(figure.low)} to {self.points(figure.high)})"


def alpha_word(alpha: TrustEstimate) -> str:
    """Return what Krippendorff's alpha surely allows (Krippendorff 2004, p. 241)."""
    return _graded(
        alpha,
        (TENTATIVE, RELIABLE),
        ("do not agree enough to rely on", "agree enough for tentative conclusions", "agree well"),
    )


def icc_word(icc: TrustEstimate) -> str:
    """Return the least grade of an intraclass correlation (Koo and Li 2016 take the interval, too)."""
    words = (
        "of poor reliability",
        "of moderate reliability",
        "of good reliability",
        "of excellent reliability",
    )
    return _graded(icc, (0.5, 0.75, 0.9), words)


def kappa_word(kappa: TrustEstimate) -> str:
    """Return the least grade of a kappa (Landis and Koch 1977)."""
    words = ("poor", "slight", "fair", "moderate", "substantial", "almost perfect")
    return _graded(kappa, (0.0, 0.2, 0.4, 0.6, 0.8), words)


def percent(share: float | None) -> str:
    """Return a share in per cent, with a digit only where it says something."""
    return "–" if share is None else f"{share * 100:.3g} %"


def _graded(figure: TrustEstimate, bars: Sequence[float], words: Sequence[str]) -> str:
    if figure.graded is None:
        return f"not graded (too few records, under {LEAST_GRADED})"
    return words[bisect_right(bars, figure.graded)]


def _effect(figure: TrustEstimate, subject: str) -> str:
    if not figure.excludes_zero:
        # The interval may exclude zero without the adjustment, so the sentence has to mention it.
        adjusted = figure.p is not None and figure.p <= 1 - CONFIDENCE and figure.p_adjusted is not None
        several = " after adjustment for all judges and biases" if adjusted else ""
        return f"{subject} neither clearly higher nor lower{several}"
    return f"{subject} {'higher' if (figure.value or 0) > 0 else 'lower'}"


def _coefficient(figure: TrustEstimate) -> str:
    if figure.value is None:
        return "–"
    shown = Wording.coefficient
    if figure.low is None or figure.high is None:
        return shown(figure.value)
    return f"{shown(figure.value)} (95 % interval {shown(figure.low)} to {shown(figure.high)})"


def _over(figure: TrustEstimate) -> str:
    return f"{_number(figure.scores, 'score')} of {_number(figure.records, 'record')}"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"

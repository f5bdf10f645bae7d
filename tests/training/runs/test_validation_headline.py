"""What a training run's newest validation says, from curves as any platform may have them."""

from __future__ import annotations

from osmosis_ai.training.runs.validation_headline import ValidationHeadline

REWARD, LOW, HIGH = (f"eval/validation/{name}" for name in ("reward", "reward_low", "reward_high"))
SCORED, PLANNED = "eval/validation/scored", "eval/validation/samples"


def test_the_newest_validation_is_told_with_its_interval_and_what_it_stands_on():
    found = ValidationHeadline.of(
        {
            REWARD: [(0, 0.5), (10, 0.625)],
            LOW: [(0, 0.3), (10, 0.43)],
            HIGH: [(0, 0.7), (10, 0.81)],
            SCORED: [(0, 20.0), (10, 18.0)],
            PLANNED: [(0, 20.0), (10, 20.0)],
        }
    )
    assert found is not None
    assert found.words == "validation reward 0.625 (0.430 – 0.810) after step 10; scored 18 of 20 planned"
    assert found.warnings == []


def test_fewer_than_nine_in_ten_scored_is_a_warning_beside_the_number():
    found = ValidationHeadline.of({REWARD: [(10, 0.625)], SCORED: [(10, 17.0)], PLANNED: [(10, 20.0)]})
    assert found is not None
    assert dict(found.facts())["Warning"] == (
        "validation: only 17 of 20 finished attempts have a score (85.0 %); the numbers leave out the rest"
    )


def test_numbers_of_an_older_validation_do_not_stand_in_for_what_the_newest_lacks():
    found = ValidationHeadline.of(
        {
            REWARD: [(0, 0.5)],
            LOW: [(0, 0.3)],
            HIGH: [(0, 0.7)],
            SCORED: [(0, 4), (5, 0)],
            PLANNED: [(0, 4), (5, 4)],
        }
    )
    assert found is not None
    assert (found.reward, found.low, found.high) == (None, None, None)
    assert found.words == "validation: none scored after step 5; scored 0 of 4 planned"
    assert found.warnings


def test_a_platform_that_measures_less_says_less():
    assert ValidationHeadline.of({"train/loss": [(1, 0.2)]}) is None
    found = ValidationHeadline.of({REWARD: [(3, 0.25)]})
    assert found is not None
    assert found.words == "validation reward 0.250 after step 3"
    assert found.to_json()["planned"] is None

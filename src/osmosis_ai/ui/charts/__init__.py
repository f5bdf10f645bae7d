"""Charts as SVG made here: no script, no ``style`` attribute, colours by the classes of ``kit.css``.

Each comes with the table of its numbers, and tells series apart by the shape of their marks as well as by colour.
"""

from osmosis_ai.ui.charts.bars import bars, bins, counted_histogram, even_edges, histograms, waterfall
from osmosis_ai.ui.charts.comparisons import forest, scatter
from osmosis_ai.ui.charts.curves import line, sparkline
from osmosis_ai.ui.charts.drawing import ChartMark, ChartPoint, ChartSeries, SvgChart, TimeSpan

__all__ = [
    "ChartMark",
    "ChartPoint",
    "ChartSeries",
    "SvgChart",
    "TimeSpan",
    "bars",
    "bins",
    "counted_histogram",
    "even_edges",
    "forest",
    "histograms",
    "line",
    "scatter",
    "sparkline",
    "waterfall",
]

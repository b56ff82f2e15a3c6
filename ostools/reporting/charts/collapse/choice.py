"""Which chart a collapse gets: curves, layers, or the precisions side by side."""

from __future__ import annotations

from typing import Any

from ostools.measure.collapse.result import Collapse
from ostools.measure.passes.precisions import Precision
from ostools.reporting.charts.collapse.curves import collapse_chart
from ostools.reporting.charts.collapse.layers import collapse_layers_chart
from ostools.reporting.charts.collapse.precision import precision_chart


def collapse_result_chart(result: Collapse) -> Any:
    """The curves dtype by dtype, of what the result is to be read by; layer by layer where several were measured.

    With parts stored in few bits, or more than four dtypes, the precisions side by side.
    """
    reading, layers = result.reading, set(result.frame["layer"])
    if len(layers) > 1:
        chosen = {} if reading is None else {"per": reading.per, "norm": reading.norm}
        return collapse_layers_chart(result, **chosen)
    if reading is not None:
        return collapse_chart(result, (reading.site,), per=reading.per, norm=reading.norm)
    names = set(result.frame["dtype"])
    many = len(names) > 4 or any(Precision.of_name(name).part is not None for name in names)
    return precision_chart(result) if many else collapse_chart(result)

"""What the results of this room have in common: how they are drawn and put into sentences stands in
`ostools.paper.charts`, which is imported when one is drawn or read.
"""

from ostools.results import Chart, Result


class PaperResult(Result):
    """A result with a row in `ostools.paper.charts.VIEWS`: its chart, and its sentences."""

    def chart(self) -> Chart:
        from ostools.paper.charts import VIEWS

        return VIEWS[type(self)][0](self)

    def findings(self) -> list[str]:
        from ostools.paper.charts import VIEWS

        return VIEWS[type(self)][1](self)

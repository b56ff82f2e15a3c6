"""The charts of the results, as Altair objects that carry their own data and look.

Each takes a result and returns a chart: `.save("figure.pdf")`, or the last line of a notebook cell.
"""

from ostools.reporting.ablation_chart import ablation_chart as ablation_chart
from ostools.reporting.behaviour_chart import behaviour_chart as behaviour_chart
from ostools.reporting.counting_chart import counting_chart as counting_chart
from ostools.reporting.curves import collapse_chart as collapse_chart
from ostools.reporting.heads_chart import heads_chart as heads_chart
from ostools.reporting.heat import attention_chart as attention_chart
from ostools.reporting.looseness_chart import looseness_chart as looseness_chart
from ostools.reporting.precision_chart import precision_chart as precision_chart
from ostools.reporting.profile_charts import layers_chart as layers_chart
from ostools.reporting.profile_charts import profile_chart as profile_chart
from ostools.reporting.profiles import comparison_chart as comparison_chart
from ostools.reporting.profiles import path_sum_chart as path_sum_chart
from ostools.reporting.profiles import sensitivity_chart as sensitivity_chart
from ostools.reporting.repeats_chart import repeats_chart as repeats_chart
from ostools.reporting.spectra_chart import spectra_chart as spectra_chart

__all__ = [
    "ablation_chart",
    "attention_chart",
    "behaviour_chart",
    "collapse_chart",
    "comparison_chart",
    "counting_chart",
    "heads_chart",
    "layers_chart",
    "looseness_chart",
    "path_sum_chart",
    "precision_chart",
    "profile_chart",
    "repeats_chart",
    "sensitivity_chart",
    "spectra_chart",
]

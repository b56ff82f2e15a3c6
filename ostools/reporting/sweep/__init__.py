"""The report on a sweep: `report` (the page), a file for the section of each measurement, `parts` they share, `charts`."""

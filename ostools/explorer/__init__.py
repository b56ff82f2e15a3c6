"""The explorer in the browser: a page on this machine that shows, of a prompt as it is typed, what `ost` measures.

`views` says what can be shown, and `question` what the page asked for, checked. `recipe` makes of a question the calls of
`ost`, which are run and copied as code. `answer`, and `collapse` for its view, make of the results what the page shows. `runs`
has the one thread that measures, says how long it still takes, and stops it. `guard` refuses requests that are not
the page's own. `app` puts these together as a web application, and `serve` starts it. Nothing here measures anything itself.
"""

from ostools.explorer.serve import Explorer as Explorer
from ostools.explorer.serve import explore as explore

__all__ = ["Explorer", "explore"]

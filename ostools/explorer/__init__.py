"""The explorer in the browser: a local page that shows, of a prompt as it is typed, what `ost`
measures.

`views`: what can be shown and requested, checked, and its call of `ost`. `runs`: the one thread
that runs the calls. `answer`: results as the page shows them, and the code. `app`: the web
application, which refuses foreign requests. `serve` starts it.
"""

from ostools.explorer.serve import Explorer as Explorer
from ostools.explorer.serve import explore as explore

__all__ = ["Explorer", "explore"]

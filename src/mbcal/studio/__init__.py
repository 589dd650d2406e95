"""`mbcal studio`: a local, read-only page on the stores, models, simulators, runs and registries under a folder.

::

    finder.find ──▶ what is here ──▶ views, runs, why (what a page shows, as plain values) ──▶ server.Studio (HTTP) ──▶ page/

Only what `finder` recognises as an artifact is read, never a link, and never anything outside the folder. torch is imported
when a run or a ranking is first asked for.
"""

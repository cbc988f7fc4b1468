"""How a cell is run. Each module has ``run(cell)`` and, where parameters can be chosen, ``tune(cell)``.

``run`` returns a dict with

* ``measures``: name -> number;
* ``curves``: name -> {"x": [...], "y": [...]}, where something is followed over time;
* ``parameters``: those used;
* ``seconds``: of training alone; anything else that explains the result.

``tune`` returns ``{"parameters": ..., "tried": [[parameters, value], ...]}``.
"""

"""The connected repositories, as the platform has them: a bare mirror of each, read without a work tree.

``mirror`` is the way in. Only ``git`` starts processes and only ``clone_url`` knows passwords; ``tree``
reads a commit, ``export`` writes one to a directory.
"""

"""The self-hosted platform: the REST API of the hosted service, really doing the work.

One process tree by default: the API and the pages (``http``), the rows (``db``), the bytes
(``blobs``), the secrets (``vault``), the synced repositories (``gitsync``) and the runs
(``runs``). Only ``db`` knows which database there is, only ``blobs`` where bytes lie.
"""

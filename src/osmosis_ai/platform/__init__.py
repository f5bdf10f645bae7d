"""The self-hosted platform: the REST API of the hosted service, executing runs itself.

One process tree by default: API and pages (``http``), rows (``db``), files (``blobs``), secrets (``vault``),
repositories (``gitsync``) and runs (``runs``). Only ``db`` knows the database engine, and only ``blobs`` the file
store.
"""

"""Messages of the REST API, one module per resource.

The platform builds them and sends what was set; the client reads them and forgives what a
platform may leave out or send as null.
"""

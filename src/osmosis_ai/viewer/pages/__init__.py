"""Pages of the viewer: functions of the request context and the query."""

"""The pages of the viewer: functions from a visitor's request and the words of an address to what a template shows."""

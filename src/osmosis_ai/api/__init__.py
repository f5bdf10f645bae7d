"""The wire format that client and platform share."""

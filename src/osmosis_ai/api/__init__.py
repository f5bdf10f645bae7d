"""The wire: what client and platform agree on, written once."""

"""The wire: what client and platform agree on, written once.

``wire`` holds the messages, ``routes`` the paths, ``client`` the one HTTP client, ``credentials``
who we are. Nothing here knows whether a hosted or a self-hosted platform answers.
"""

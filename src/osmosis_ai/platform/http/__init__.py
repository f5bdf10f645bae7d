"""What all routes share: authentication, errors, limits and paging."""

"""Audit: is there a shortcut in one's own data, which samples break it, and which model to ship."""

"""The configuration's sections, and how files and overrides become one."""

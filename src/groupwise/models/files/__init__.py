"""Model folders: read, refused in one line, described, made from other formats or from a package."""

"""The version of groupwise, where nothing else has to be imported to know it."""

VERSION = "0.1.0"

"""The ground: records that flow, protocols, and the numbers that everything above shares."""

VERSION = "0.1.0"

"""The witness: a second, independent reading of each step, by definitions that share nothing with what they judge."""

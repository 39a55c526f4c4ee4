"""The laws that every part of a slot obeys, as data and functions: the tests hold the catalog's parts to them, and
`groupwise laws` a user's own. Random batches in float64 try a law; what breaks it is said in words.
"""

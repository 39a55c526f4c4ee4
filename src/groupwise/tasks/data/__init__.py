"""Problems from files and data sets.

sources    a path of the recipe -> where its rows are read from; formats: text files; libraries: Parquet, `datasets`
columns    a row -> a sample
index      many samples in little memory
problems   all rows -> training and held-out samples, and notes on what was left out
settings   the keys under [task], and which rows its filter keeps; task: the task itself
"""

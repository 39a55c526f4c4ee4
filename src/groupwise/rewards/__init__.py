"""What a completion is worth: answer checkers, form, the user's own functions, and the processes they run in."""

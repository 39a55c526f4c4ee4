"""What kind of answer a text is, and of which parts."""

"""A completion split into thinking and answer, so that a checker looks at the answer alone."""

OPEN, CLOSE = "<think>", "</think>"


def split_thinking(text: str, open: str = OPEN, close: str = CLOSE, opened: bool = False) -> tuple[str, str]:
    """A completion -> (thinking, answer), without the tags and without white space around them.

    The answer is what follows the last `close`. Thinking that was begun and never closed has no answer: whatever
    stands in it was never given as one. `opened` says that the prompt itself ends in `open` (chat.open), so that a
    completion without any tag is unfinished thinking.

    >>> split_thinking("<think>2 and 2</think> 4")
    ('2 and 2', '4')
    >>> split_thinking("2 and 2</think> 4")
    ('2 and 2', '4')
    >>> split_thinking("<think>is it 4?")
    ('is it 4?', '')
    >>> split_thinking("4"), split_thinking("4", opened=True)
    (('', '4'), ('4', ''))
    """
    before, closed, after = text.rpartition(close)
    if not closed:
        return (_without(text, open), "") if opened or open in text else ("", text.strip())
    if open in after:  # begun again and not closed: the answer so far is taken back
        return _without(text, open), ""
    return _without(before, open), after.strip()


def answer_only(text: str, open: str = OPEN, close: str = CLOSE, opened: bool = False) -> str:
    """What a completion answers, its thinking left out; "" where it never came to an answer.

    >>> answer_only("<think>7, no, 8</think>The answer is 8.")
    'The answer is 8.'
    """
    return split_thinking(text, open, close, opened)[1]


def closed_behind(begun: str, answer: str) -> str:
    """What a completion that gives `answer` says behind `begun`, which its prompt has of it already: thinking that is
    open there is closed first, and is not opened again.

    >>> closed_behind("<think>\\n", "4"), closed_behind("<think>\\n", "<think>\\n2 + 2</think>4")
    ('\\n</think>\\n\\n4', '2 + 2</think>4')
    >>> closed_behind("", "4"), closed_behind("<think></think>", "4")
    ('4', '4')
    """
    if OPEN not in begun.rpartition(CLOSE)[2]:
        return answer
    if CLOSE not in answer:
        return f"\n{CLOSE}\n\n{answer}"
    again = answer.lstrip().startswith(OPEN)
    return answer.lstrip().removeprefix(OPEN).lstrip() if again else answer


def _without(thinking: str, open: str) -> str:
    return thinking.strip().removeprefix(open).strip()

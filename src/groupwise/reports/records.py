"""The content of a page: plain records that become one JSON text inside it. None is a gap: there was no number.

A page holds one run, or several side by side. Everything is computed and worded here in Python; the page's own scripts
only draw, filter and open.
"""

from dataclasses import dataclass, field

from groupwise.health.symptoms.base import NEUTRAL, Finding

Number = float | int | None


@dataclass(frozen=True)
class Curves:
    """A table by column: row i is `step[i]`, and every column is as long as `step`.

    step  a training step; of a plot with another horizontal axis, the place on it
    """

    step: list[int] = field(default_factory=list)
    columns: dict[str, list[Number]] = field(default_factory=dict)


@dataclass(frozen=True)
class Series:
    """One line of a plot. `low` and `high` name columns that bound a band around it; "" is none.

    column   "" is a band without a line
    dash     solid | dash | dot | dashdot | longdash
    table    where its columns are, if not in the plot's table
    """

    name: str
    column: str = ""
    low: str = ""
    high: str = ""
    dash: str = "solid"
    table: str = ""


@dataclass(frozen=True)
class Mark:
    """A horizontal line that something is measured against."""

    at: float
    words: str


@dataclass(frozen=True)
class Key:
    """A metric's name, as metrics.jsonl has it, and what it is."""

    name: str
    meaning: str


@dataclass(frozen=True)
class Plot:
    """One picture.

    keys    the metrics that it is drawn from
    hint    one line: what good and what bad look like
    kind    lines | stack (areas that add up) | points (x and y are the two series' columns)
    table   which curves of a run it draws: steps | evaluations | points
    limits  of the vertical axis; None follows the data
    reach   what the vertical axis shows at least, if it follows the data: keeps small wobbles small
    across  what the horizontal axis is; "" is the training step
    """

    id: str
    section: str
    title: str
    hint: str
    unit: str
    series: tuple[Series, ...]
    kind: str = "lines"
    table: str = "steps"
    limits: tuple[Number, Number] = (None, None)
    log: bool = False
    marks: tuple[Mark, ...] = ()
    reach: tuple[Number, Number] = (None, None)
    across: str = ""
    log_across: bool = False
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Section:
    """A part of the page: a question, and a sentence about what stands below it; `short` is it in the contents."""

    id: str
    title: str
    lead: str
    short: str = ""


@dataclass(frozen=True)
class Status:
    """finished | going | stopped | failed | empty, and that in words."""

    state: str
    words: str


@dataclass(frozen=True)
class Event:
    """Something that happened after a step: evaluation | checkpoint | warning | resumed | went back."""

    step: int
    kind: str
    words: str = ""


@dataclass(frozen=True)
class QuestionAnswer:
    """One of a newcomer's questions, and its answer in a sentence or two."""

    question: str
    answer: str
    tone: str = NEUTRAL


@dataclass(frozen=True)
class CheckLine:
    """One of the run's own invariants over all of its steps."""

    name: str
    verdict: str  # pass | fail | not measured
    words: str
    steps: int
    largest: Number
    limit: Number


@dataclass(frozen=True)
class Table:
    """Rows of text under a head; `numbers` are the columns set flush right, `section` the part of the page it is in."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: str = ""
    numbers: tuple[int, ...] = ()
    section: str = "ran"


@dataclass(frozen=True)
class Text:
    """A text that is shown as it is written, such as a recipe."""

    title: str
    text: str


@dataclass(frozen=True)
class RolloutRow:
    """One completion of the browser.

    stop     the stop string that ended it; "" if none did
    spans    the tokens that each version of the weights sampled (start, stop, version), if there are several
    turns    of an episode, what each turn of the policy brought: reward, advantage, state, fault, calls of tools; its
             tokens, and the number of the row that it is in
    anew     the tokens from which on the policy read with nothing before it, each of which begins a row
    ended    why an episode ended
    answers  (start, stop) of the tokens that an environment wrote; no column has a number there
    pieces   the text of each token, end token included; empty if the run did not write tokens
    columns  per token, each as long as `pieces`: log_ratio, advantage, share, entropy, logp_old, logp_engine, ...
    measured  the reward that the run is measured by, if it is not the task's score
    logged   what reward functions log of it, by `reward.column`
    """

    text: str
    score: Number
    reward: Number
    advantage: Number
    finish: str
    tokens: int
    version: int
    spans: list[dict[str, Number]] = field(default_factory=list)
    parts: dict[str, Number] = field(default_factory=dict)
    learned: Number = None
    measured: Number = None
    logged: dict[str, Number | str] = field(default_factory=dict)
    fault: str = ""
    stop: str = ""
    turns: list[dict[str, Number | str]] = field(default_factory=list)
    ended: str = ""
    anew: list[int] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    columns: dict[str, list[Number]] = field(default_factory=dict)


@dataclass(frozen=True)
class RolloutGroup:
    """A prompt with its group of completions in one step.

    kind  mixed | all right | all wrong | unscored; measured by a reward: rewards differ | rewards equal | unscored
    fate  trained | dropped | surplus | heldout: of the evaluation after the step
    """

    step: int
    group: int
    key: str
    source: str
    prompt: str
    answer: str
    kind: str
    fate: str
    fresh: bool
    completions: list[RolloutRow]


@dataclass(frozen=True)
class Said:
    """A completion of a step, and what it scored."""

    step: int
    text: str
    score: Number


@dataclass(frozen=True)
class Contrast:
    """One problem, or two alike, as the policy answered at first and at last."""

    prompt: str
    answer: str
    first: Said
    last: Said
    last_prompt: str = ""


@dataclass(frozen=True)
class Rollouts:
    """The groups that the browser holds, and how many of all that is, in words; first against last completions, and
    in words which those are.
    """

    words: str
    groups: list[RolloutGroup]
    contrasts: tuple[Contrast, ...] = ()
    contrast_words: str = ""


@dataclass(frozen=True)
class RunPage:
    """Everything a page says of one run, or of several runs of one recipe taken together (`members` > 1).

    label    in legends and tables
    notes    what was wrong with the folder, line by line: "metrics.jsonl: the last line is cut off and was left out"
    steps    one row a training step; with members the mean, and columns NAME.low and NAME.high bound the band
    points   tables for plots of kind points, by plot id
    events   what charts mark, by step
    """

    id: str
    label: str
    status: Status
    members: int = 1
    notes: tuple[str, ...] = ()
    answers: tuple[QuestionAnswer, ...] = ()
    checks: tuple[CheckLine, ...] = ()
    findings: tuple[Finding, ...] = ()
    steps: Curves = field(default_factory=Curves)
    evaluations: Curves = field(default_factory=Curves)
    points: dict[str, Curves] = field(default_factory=dict)
    rollouts: Rollouts | None = None
    tables: tuple[Table, ...] = ()
    texts: tuple[Text, ...] = ()
    events: tuple[Event, ...] = ()


@dataclass(frozen=True)
class Live:
    """The address that a watched page asks for what is new, and how often."""

    url: str
    seconds: float


@dataclass(frozen=True)
class Page:
    """All of a page.

    written  when, as it is shown
    tables   above the plots: final scores, and what differs between the recipes
    unchanged  by section the charts whose lines never move, each in words: "Learning rate: 0.001"
    edition  changes when a watched run is cut back: a page of another edition has to be loaded again
    """

    title: str
    written: str
    sections: tuple[Section, ...]
    plots: tuple[Plot, ...]
    runs: tuple[RunPage, ...]
    tables: tuple[Table, ...] = ()
    live: Live | None = None
    edition: int = 0
    unchanged: dict[str, list[str]] = field(default_factory=dict)

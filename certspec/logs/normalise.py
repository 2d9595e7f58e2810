"""From a raw position to a checked one: sentinels, processed lists, sums, order, true ranks and
duplicates. What the numbers of a log may mean is decided here, for every format alike.

Example: the list (-0.1, -9999.0, -9999.0) with the chosen token at -0.1 is what a server writes
after top-k 1: 2 of its 3 entries are sentinels. A certificate from it would mean nothing, so it is
refused wherever the rest of its mass or a top entry of exactly 0.0 shows that it was cut."""

from __future__ import annotations

import json
import math
import operator
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from certspec.certificates.written import FLOAT32_ERROR
from certspec.errors import UnreadableInput
from certspec.logs.findings import Finding, Findings
from certspec.logs.position import Key, LoggedPosition, RawPosition
from certspec.logs.stated import Stated

__all__ = ["CUT_REASONS", "Normaliser", "TemperatureGrid", "is_text"]

# Spacings of bfloat16 logits: one of 8 to 16 is a multiple of 1/16 (8 bits of mantissa).
_GRIDS = (1.0 / 4.0, 1.0 / 8.0, 1.0 / 16.0, 1.0 / 32.0, 1.0 / 64.0)
_MAX_GAPS = 4096
_MIN_GAPS = 40
# Usual settings first: of several that fit equally well, the first is named.
_CANDIDATES = (
    1.0,
    0.7,
    0.6,
    0.8,
    0.5,
    0.3,
    0.2,
    0.1,
    0.4,
    0.9,
    1.2,
    1.5,
    1.1,
    1.3,
    1.4,
    2.0,
    0.25,
    0.75,
    0.65,
    0.85,
    0.95,
    0.15,
    0.35,
    0.45,
    0.55,
    1.6,
    1.7,
    1.8,
    1.9,
    0.05,
)


@dataclass
class TemperatureGrid:
    """Collects gaps of the first positions of a log and says at which temperature they fit the
    grid."""

    gaps: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)

    def add(self, logprobs: Sequence[float]) -> None:
        """Take a position's gaps to its top entry (nats); logprobs fall with the index."""
        if len(self.gaps) >= _MAX_GAPS:
            return
        top = logprobs[0]
        for value in logprobs[1:9]:
            if 0.0 < top - value < 40.0:
                self.gaps.append(top - value)
                self.sizes.append(max(1.0, -value))

    def temperature(self) -> float | None:
        """The temperature that makes the gaps fit a grid, up to a power of two; None where none
        does or gaps are few.

        Gaps g / T with g on a grid of 2^-k have spacing 2^-k / T, so of all candidates that fit,
        the true one has the coarsest spacing; T / 2, T and 2 T can't be told apart, and the most
        usual of them is named."""
        if len(self.gaps) < _MIN_GAPS:
            return None
        gaps, sizes = np.array(self.gaps), np.array(self.sizes)
        best, coarsest = None, 0.0
        for candidate in _CANDIDATES:
            spacing = next(
                (grid / candidate for grid in _GRIDS if _fits(gaps, sizes, grid / candidate)), 0.0
            )
            if spacing > coarsest * (1.0 + 1e-9):
                best, coarsest = candidate, spacing
        return best


def _fits(gaps: np.ndarray, sizes: np.ndarray, spacing: float) -> bool:
    """Whether at least 95 % of the gaps are multiples of the spacing, up to what float32 leaves of
    a value's size."""
    steps = gaps / spacing
    slack = 2.5e-7 * sizes / spacing + 1e-6
    return bool((np.abs(steps - np.round(steps)) <= slack).mean() >= 0.95)


_FEW_DECIMALS = 5  # more are finer than what float32 leaves
_FEW_DIGITS = 6  # significant ones, as C and C++ print a number; float32 has 7
_WHOLE_BY_CHANCE = 1e-5  # of lists of many digits, so few are of whole numbers
_LEAST_DIGITS = 3  # that a file is taken to have: of fewer, its other decimals are 0
_MANTISSAS = (8, 11)  # bits of bfloat16 and float16, in which some servers take their log-softmax
_FLOAT32 = struct.Struct("f")

SUM_TOLERANCE = 1e-6  # float32 sums reach 1 + 1.1e-7

# of an answer that a limit ended, in the words of any server
CUT_REASONS = ("length", "limit", "max_tokens", "max_output_tokens")
_SENTINELS = frozenset({-math.inf, -9999.0, -1000.0, -100.0})
_SENTINEL_TEXTS = frozenset({"-infinity", "-inf"})
_LEAST_PLAIN = -99.0  # above every sentinel
_NO_LOGPROB = -1e4  # SGLang and llama.cpp write the least float32 for log 0
_MOST_TOKENS = 2**18  # of a vocabulary whose size isn't stated
_FLOATS, _IDS, _BYTES = {float}, {int}, {bytes}
# lists of at least this many entries are taken for (nearly) a whole row of logits
_WHOLE_VOCABULARY = 1000
# a file whose first so many lists all look processed is refused at once
_TELLING_LISTS = 16
_NO_KEY_MARKS = ("\ufffd", "\\x", "bytes:")
_REPLACED = "\ufffd".encode()  # what servers show of every piece of a character


class Normaliser:
    """Checks the positions of one file, one by one, in bounded memory."""

    def __init__(self, name: str, findings: Findings, stated: Stated) -> None:
        self.name, self.findings, self.stated = name, findings, stated
        self._most_tokens = stated.num_tokens or _MOST_TOKENS
        # no sum is smaller than its largest term, whatever it loses
        self._sum_error = min(self._most_tokens * 2.0**-24, math.log(self._most_tokens))
        self.deepest = 0
        self._left_out_last: tuple[int, str, list[tuple[int, Key]]] | None = None
        self.num_without_list = 0
        self._num_read = 0
        self._num_judged = self._num_processed = 0  # lists that could show processing; that did
        self._num_compared = self._num_apart = 0  # chosen tokens that are listed; with other values
        self._first_apart: UnreadableInput | None = None
        self._num_pairs = self._num_whole_pairs = 0  # lists of two entries; those of mass 1
        self._first_processed = ""
        self.grid = TemperatureGrid()
        self._num_whole = self._num_zeros = 0  # lists of whole numbers; 0.0s not taken for them
        self._full_precision = False  # once a list of many digits was read
        self._has_fractions = False  # once a value of few digits was no whole number

    def __call__(self, raw: RawPosition) -> LoggedPosition | None:
        """The checked position, or None where it holds no list; raises UnreadableInput naming file,
        line and reason."""
        position = self._checked(raw)
        if isinstance(raw.prompt, list):
            before = self._before(raw)
            before.insert(0, (-1, hash(json.dumps(raw.prompt))))
        if self._left_out_last and position is not None:
            sequence, part, chosen = self._left_out_last
            if (sequence, part) == (position.sequence, position.part):
                position.before = tuple(chosen)
            self._left_out_last = None
        return position

    def _before(self, raw: RawPosition) -> list[tuple[int, Key]]:
        """What is known of the tokens before the sequence's next position with a list."""
        last = self._left_out_last
        if last is None or last[:2] != (raw.sequence, raw.part):
            last = self._left_out_last = (raw.sequence, raw.part, [])
        return last[2]

    def _checked(self, raw: RawPosition) -> LoggedPosition | None:
        plain = self._plain(raw)
        if plain is not None:
            return plain
        self._keep_once(raw)
        values = [self._logprob(raw, entry.logprob) for entry in raw.entries]
        chosen = self._logprob(raw, raw.chosen.logprob) if raw.chosen is not None else None
        if not raw.entries or not (chosen is not None or any(v is not None for v in values)):
            self._leave_out(raw)
            return None
        self._judge_processed(raw, values, chosen)
        kept = [place for place, value in enumerate(values) if value is not None]
        if len(kept) < len(values):
            self._note(raw, Finding.SENTINELS_DROPPED)
        if not kept:
            self._leave_out(raw)
            return None
        position = self._sorted(raw, kept, values)
        if position.num_ranked == 0:  # not even the most probable token is known
            self._leave_out(raw, has_list=True)
            return None
        self._refuse_sum(raw, position)
        self._add_chosen(raw, position, chosen)
        self._refuse_sum(raw, position)
        if len(kept) == len(values):
            self._refuse_gap(raw, position)
        self._note_facts(raw, position)
        return position

    def _leave_out(self, raw: RawPosition, *, has_list: bool = False) -> None:
        """Count a position that nothing can be certified from; ``has_list``: of tokens without a
        rank."""
        # only a prompt's first position has nothing before it, so that no model gives it a list
        first = raw.position == 0 and raw.part == "prompt" and not has_list
        missing = Finding.TOP_UNKNOWN if has_list else Finding.POSITION_WITHOUT_LIST
        self._note(raw, Finding.FIRST_WITHOUT_LIST if first else missing)
        self.num_without_list += not first
        key = None if raw.chosen is None else _usable(raw.chosen.key)
        self._before(raw).append((raw.position, key))

    def _plain(self, raw: RawPosition) -> LoggedPosition | None:
        """What ``__call__`` makes of most positions of most logs, several times faster; None where
        anything about the position calls for a closer look: nothing is judged here that is judged
        there."""
        chosen, entries = raw.chosen, raw.entries
        if not self._full_precision or raw.ranks is not None or raw.keyed_by_text or chosen is None:
            return None
        if not 2 <= len(entries) < _WHOLE_VOCABULARY:
            return None
        keys: list[Key]
        logprobs: list[float]
        keys, texts, logprobs = map(list, zip(*entries, strict=True))
        kinds = set(map(type, keys))
        if set(map(type, logprobs)) != _FLOATS or not (
            kinds == _IDS or (kinds == _BYTES and all(map(_usable, keys)))
        ):
            return None
        if len(set(keys)) != len(keys) or chosen.key not in keys:
            return None
        if not (
            logprobs[0] < 0.0
            and logprobs[-1] > _LEAST_PLAIN
            and all(map(operator.gt, logprobs, logprobs[1:]))
        ):
            return None  # unsorted, tied, certain, NaN, or deep enough for a sentinel
        if all(map(_has_few_digits, logprobs[:2])):
            return None
        place, mass = keys.index(chosen.key), math.fsum(map(math.exp, logprobs))
        if (
            chosen.logprob != logprobs[place]
            or (raw.chosen_may_be_added and place == len(keys) - 1)
            or mass >= 1.0 - SUM_TOLERANCE
            or 1.0 - mass > (self._most_tokens - len(keys)) * math.exp(logprobs[-1])
        ):
            return None
        self._num_judged += len(keys) >= 3
        self._num_pairs += len(keys) == 2
        if raw.finish is not None or len(keys) < self.deepest:
            self._note_finish_and_depth(raw, len(keys))
        self.deepest = max(self.deepest, len(keys))
        self.grid.add(logprobs)
        return LoggedPosition(
            raw.sequence,
            raw.position,
            raw.part,
            raw.line,
            logprobs,
            keys,
            texts,
            len(keys),
            FLOAT32_ERROR + self._sum_error_of(raw),
            place,
            chosen.key,
            raw.finish,
        )

    def _logprob(self, raw: RawPosition, value: object) -> float | None:
        """A logprob in nats, or None for a sentinel of probability zero (or of "outside the
        list")."""
        if value is None:
            return None
        if isinstance(value, str):
            if value.strip().lower() in _SENTINEL_TEXTS:
                return None
            raise self._refusal(raw, f"expected a logprob, got the text {value!r}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._refusal(
                raw, f"expected a logprob, got {type(value).__name__} {str(value)[:40]!r}"
            )
        if value in _SENTINELS or (isinstance(value, float) and value <= _NO_LOGPROB):
            return None
        if value > 0.0:
            raise self._refusal(
                raw,
                f"logprob {value!r} is above 0: these are raw logits or probabilities, not "
                "logprobs",
            )
        if value != value:
            raise self._refusal(raw, "logprob is NaN")
        try:
            return float(value)
        except OverflowError:
            raise self._refusal(raw, "a logprob of more than 300 digits") from None

    def end(self, position: LoggedPosition, reason: str) -> None:
        """Say of a position that its answer ended there, and why."""
        position.finish = reason
        if reason in CUT_REASONS:
            self._note(position, Finding.CUT)

    def finish(self) -> None:
        """Judge the file as a whole, once all positions are read: UnreadableInput where most lists
        look processed or of another distribution than their chosen tokens, or where whole numbers
        are all that it holds or lie among many digits; a finding with the file's temperature where
        some look processed."""
        if self._first_apart is not None and 2 * self._num_apart > self._num_compared:
            raise self._first_apart
        if self._num_read and not (self._full_precision or self._has_fractions):
            raise UnreadableInput(
                f"{self.name}: every logprob is a whole number, as rounding leaves them, or 0, as "
                "temperature 0 or top-k 1 do: such a log says nothing about the model; ask the "
                "server for raw logprobs of several tokens"
            )
        if self._num_zeros and self._num_whole > 1 + _WHOLE_BY_CHANCE * self._num_judged:
            raise UnreadableInput(
                f"{self.name}: {self._num_whole:,} lists hold whole numbers only, as rounding "
                "leaves them, beside lists of many digits: expected the log of one server; import "
                "each server's by itself"
            )
        if 2 * self._num_whole_pairs > self._num_pairs:
            share = f"{self._num_whole_pairs:,} of {self._num_pairs:,} lists of two entries"
            self.findings.note(Finding.LOOKS_PROCESSED, share, self._num_whole_pairs)
        if not self._num_processed:
            return
        found = self.grid.temperature()
        at = (
            ""
            if found is None
            else f"; its logprobs fit temperature {found:g}, up to a power of two"
        )
        share = f"{self._num_processed:,} of {self._num_judged:,} lists that could show it"
        if 2 * self._num_processed > self._num_judged:
            raise UnreadableInput(f"{self._first_processed} ({share}{at})")
        self.findings.note(Finding.LOOKS_PROCESSED, f"{share}{at}", self._num_processed)

    def _judge_processed(
        self, raw: RawPosition, values: Sequence[float | None], chosen: float | None
    ) -> None:
        """Refuse a list whose missing tokens stand as sentinels beside mass 1; count one whose mass
        is 1 though tokens are missing. One such list may be natural, most of a file are not: a file
        is refused by their share, at once where its first ones all look so."""
        known = [value for value in values if value is not None]
        num_sentinels = len(values) - len(known)
        if len(values) >= _WHOLE_VOCABULARY and 2 * len(known) >= len(values):
            return  # a whole row with some masked ids
        if not known:
            if num_sentinels and chosen == 0.0:
                raise self._refusal(
                    raw, _PROCESSED.format(f"chosen at 0.0, {num_sentinels} sentinels beside it")
                )
            return
        top, mass = max(known), math.fsum(map(math.exp, known))
        whole = abs(mass - 1.0) <= SUM_TOLERANCE
        if num_sentinels and (top == 0.0 or whole):
            what = (
                "top entry exactly 0.0"
                if top == 0.0
                else f"{len(known)} entries of mass {mass:.7f}"
            )
            raise self._refusal(
                raw, _PROCESSED.format(f"{what}, {num_sentinels} sentinels beside it")
            )
        last = math.exp(min(known))
        if len(known) == 2:  # a yes and a no may hold all the mass by nature: said, never refused
            self._num_pairs += 1
            self._num_whole_pairs += whole and last > 1e-3
        if not 3 <= len(known) < _WHOLE_VOCABULARY:
            return
        self._num_judged += 1
        if whole and last > 1e-3:
            what = f"{len(known)} entries of mass {mass:.7f}, the last still {last:.2g}"
            self._num_processed += 1
            if not self._first_processed:
                self._first_processed = str(self._refusal(raw, _PROCESSED.format(what)))
            if self._num_processed == self._num_judged == _TELLING_LISTS:
                self.finish()

    def _keep_once(self, raw: RawPosition) -> None:
        """Drop a token's second entry; its two logprobs have to be one."""
        first: dict[int, object] = {}
        places = []
        for place, (key, _, value) in enumerate(raw.entries):
            known = first.setdefault(key, value) if isinstance(key, int) else value
            if known is value:
                places.append(place)
            elif known != value:
                raise self._refusal(raw, f"token {key!r} is listed with {known} and with {value}")
        if len(places) < len(raw.entries):
            raw.entries = [raw.entries[place] for place in places]
            raw.ranks = None if raw.ranks is None else [raw.ranks[place] for place in places]

    def _sorted(
        self, raw: RawPosition, kept: list[int], values: Sequence[float | None]
    ) -> LoggedPosition:
        entries = raw.entries
        order = sorted(kept, key=lambda place: (-values[place], _id_order(entries[place].key)))  # type: ignore[operator]
        logprobs: list[float] = [values[place] for place in order]  # type: ignore[misc]
        keys, ambiguous = self._keys(raw, order)
        error = self._rounding(logprobs)
        return LoggedPosition(
            raw.sequence,
            raw.position,
            raw.part,
            raw.line,
            logprobs,
            keys,
            [entries[place].text for place in order],
            num_ranked=self._num_ranked(raw, order, logprobs, error),
            error=error + self._sum_error_of(raw),
            finish=raw.finish,
            ambiguous=ambiguous,
        )

    def _keys(
        self, raw: RawPosition, order: list[int]
    ) -> tuple[list[Key], frozenset[int | bytes | str]]:
        keys = [_usable(raw.entries[place].key) for place in order]
        if None in keys:
            self._note(raw, Finding.NO_KEY)
        elif len(set(keys)) == len(keys):
            return keys, frozenset()
        repeated = frozenset(key for key in set(keys) if key is not None and keys.count(key) > 1)
        if repeated:
            self._note(raw, Finding.DUPLICATE_KEYS)
        return [None if key in repeated else key for key in keys], repeated

    def _num_ranked(
        self, raw: RawPosition, order: list[int], logprobs: list[float], error: float
    ) -> int:
        """How many leading entries are surely the first ranks of the whole vocabulary."""
        if raw.ranks is not None:
            return self._ranked_by_server(raw, order, logprobs)
        if raw.keyed_by_text and self._may_have_lost(raw):
            return self._surely_ranked(raw, logprobs, error)
        if not raw.chosen_may_be_added:
            return len(order)
        # vLLM's servers put the chosen token first, llama-cpp-python's and completions add it
        # behind the list. Where it is the least of all, nothing says that it is the next rank.
        least = raw.entries[order[-1]]
        # llama-cpp-python writes no bytes: its tokens have no key, but their texts and values
        apart = raw.chosen is not None and (
            least != raw.chosen if least.key is None else least.key != raw.chosen.key
        )
        if apart:
            return len(order)
        if len(order) == 1:
            return int(math.exp(logprobs[0] - error) > 0.5)
        if logprobs[-1] < logprobs[-2]:
            self._note(raw, Finding.CHOSEN_BEYOND)
            return len(order) - 1
        return len(order)

    def _may_have_lost(self, raw: RawPosition) -> bool:
        """Whether two tokens of one text may stand as one entry of the list, so that one of them is
        missing."""
        if self.stated.text_keys_are_tokens or all(
            isinstance(entry.key, int) for entry in raw.entries
        ):
            return False
        asked = self.stated.top_logprobs
        if asked is None:
            return True
        # the least token, where it is the chosen one, may have been added to those asked for
        values = [entry.logprob for entry in raw.entries if isinstance(entry.logprob, (int, float))]
        added = raw.chosen is not None and any(
            entry.key == raw.chosen.key and (entry.logprob is None or entry.logprob == min(values))
            for entry in raw.entries
        )
        if len(raw.entries) > asked + added:
            expected = f"at most {asked} tokens (top_logprobs) and the chosen one"
            raise self._refusal(raw, f"expected {expected}, got {len(raw.entries)}")
        return len(raw.entries) < asked + added

    def _surely_ranked(self, raw: RawPosition, logprobs: list[float], error: float) -> int:
        """How many entries are likelier than all that the list lost together."""
        self._note(raw, Finding.KEY_LOST)
        outside = 1.0 - math.fsum(map(math.exp, logprobs)) * math.exp(-error)
        return sum(1 for value in logprobs if math.exp(value - error) > outside)

    def _ranked_by_server(self, raw: RawPosition, order: list[int], logprobs: list[float]) -> int:
        """How many leading entries the server's ranks cover without a gap.

        vLLM's rank of the chosen token counts every token that is at least as likely. Two tokens
        tied at the top may so have the ranks 2 and 1, or 2 and 2: ties are one block, and a rank
        up to the block's last place leaves no room for a token that isn't listed."""
        ranks, start = raw.ranks or [], 0
        while start < len(order):
            end = start + 1
            while end < len(order) and logprobs[end] == logprobs[start]:
                end += 1
            if any(ranks[index] > end for index in order[start:end]):
                self._note(raw, Finding.CHOSEN_BEYOND)
                return start
            start = end
        return len(order)

    def _add_chosen(self, raw: RawPosition, position: LoggedPosition, chosen: float | None) -> None:
        """Find the chosen token in the list, or add it behind the ranks where its logprob is
        known."""
        if raw.chosen is None:
            return
        key = position.chosen_key = _usable(raw.chosen.key)
        if key is not None and key in position.keys:
            position.chosen = position.keys.index(key)
            listed = position.logprobs[position.chosen]
            self._num_compared += 1
            if chosen is not None and abs(listed - chosen) > 1e-4 + position.error:
                self._note_apart(raw, position, chosen, listed)
        elif chosen is None:
            self._note(raw, Finding.CHOSEN_OUTSIDE)
        elif chosen in position.logprobs:
            position.chosen = position.logprobs.index(
                chosen
            )  # its key repeats or is unusable, its value is there
        elif key is None or key in position.ambiguous:
            pass  # it may be listed: its mass would count twice
        elif (
            position.logprobs
            and chosen > position.logprobs[position.num_ranked - 1] + position.error
        ):
            last = position.logprobs[-1]
            raise self._refusal(
                raw,
                f"the chosen token's logprob {chosen} exceeds the list's last {last}, but it isn't "
                "listed",
            )
        else:
            position.chosen = len(position.logprobs)
            position.logprobs.append(chosen)
            position.keys.append(key)
            position.texts.append(raw.chosen.text)
            rounding = self._rounding(position.logprobs)  # it is as exact as the list beside it
            position.error = max(position.error, rounding + self._sum_error_of(raw))

    def _note_apart(
        self, raw: RawPosition, position: LoggedPosition, chosen: float, listed: float
    ) -> None:
        """Refuse a chosen token whose logprob differs from the list's; where tokens are known by
        their text it may be another one of the same, unless it is so of most."""
        said = self._refusal(
            raw, f"the chosen token has logprob {chosen}, in the list {listed}: two distributions"
        )
        key = position.keys[position.chosen]
        if isinstance(key, int) or key is None or self.stated.text_keys_are_tokens:
            raise said
        self._num_apart += 1
        self._first_apart = self._first_apart or said
        self._note(raw, Finding.DUPLICATE_KEYS)
        position.ambiguous |= {key}
        position.keys[position.chosen], position.chosen = None, -1

    def _refuse_sum(self, raw: RawPosition, position: LoggedPosition) -> None:
        mass = math.fsum(map(math.exp, position.logprobs))
        if mass > (1.0 + SUM_TOLERANCE) * math.exp(position.error):
            raise self._refusal(
                raw,
                f"the list's probabilities sum to {mass:.7f}, more than 1: raw logits, not "
                "logprobs",
            )

    def _refuse_gap(self, raw: RawPosition, position: LoggedPosition) -> None:
        """Refuse a list that leaves more mass than all tokens no likelier than its last can have: a
        likelier one is missing from it, or its values are no logprobs."""
        last = math.exp(position.logprobs[position.num_ranked - 1] + position.error)
        mass = math.fsum(map(math.exp, position.logprobs))
        outside = 1.0 - mass * math.exp(position.error)
        most = self._most_tokens - len(position.logprobs)
        # fewer than are listed: that is said where the vocabulary's stated size is checked
        if outside > most * last and most >= 0 and not position.ambiguous:
            raise self._refusal(
                raw,
                f"the list leaves out {outside:.3g} of the probability, more than {most:,} others "
                f"can have that are no likelier than its last one ({last:.3g}): a likelier one is "
                "missing, these are no logprobs, or num_tokens is too small",
            )

    def _note_facts(self, raw: RawPosition, position: LoggedPosition) -> None:
        logprobs = position.logprobs
        self._num_read += 1
        if len(logprobs) > 1 and logprobs[0] == logprobs[1]:
            self._note(raw, Finding.TOP_TIE)
        text = raw.chosen.text if raw.chosen is not None else None
        looks_special = text is not None and text.startswith("<") and text.endswith(">")
        if logprobs[0] == 0.0 and position.chosen == 0 and (looks_special or len(logprobs) == 1):
            self._note(raw, Finding.FORCED)
        if position.error > FLOAT32_ERROR + self._sum_error_of(raw):
            # in a file of long numbers it may be chance: gaps of bfloat16 logits have 5 decimals
            if not self._full_precision:
                self._note(raw, Finding.COARSE_DECIMALS)
        else:
            self.grid.add(logprobs[: position.num_ranked])
        if isinstance(position.keys[0], str):
            self._note(raw, Finding.TEXT_KEYS)
        self._note_finish_and_depth(raw, position.num_ranked)
        self.deepest = max(self.deepest, position.num_ranked)

    def _note_finish_and_depth(self, raw: RawPosition, num_ranked: int) -> None:
        if raw.finish in CUT_REASONS:
            self._note(raw, Finding.CUT)
        if num_ranked < self.deepest:
            self._note(raw, Finding.DEPTH_VARIES)

    def _rounding(self, logprobs: Sequence[float]) -> float:
        """Half a unit of the last decimal or digit, or half a step of a float of 16 bits, where all
        values of the list have so few, else what float32 leaves."""
        if logprobs[-1] < 0.0 and not _has_few_digits(logprobs[-1]):
            self._full_precision = True
            return FLOAT32_ERROR
        is_whole, is_zero = all(map(float.is_integer, logprobs)), not any(logprobs)
        self._has_fractions |= not is_whole
        self._num_whole += is_whole and not is_zero
        # a 0.0 beside lists of many digits is one of theirs, unless the file holds whole numbers
        least = int(is_zero and self._full_precision)
        self._num_zeros += least
        errors = [
            0.5 * 10.0**-decimals
            for decimals in range(least, _FEW_DECIMALS + 1)
            if all(_is_rounded(value, decimals) for value in logprobs)
        ][:1]
        size = -min(logprobs)
        if size > 0.0:
            order = math.floor(math.log10(size)) + 1
            errors += [
                0.5 * 10.0 ** (order - digits)
                for digits in range(_LEAST_DIGITS, _FEW_DIGITS + 1)
                if all(_has_digits(value, digits) for value in logprobs)
            ][:1]
            errors += [
                size * 2.0**-bits
                for bits in _MANTISSAS
                if all((math.frexp(value)[0] * 2.0**bits).is_integer() for value in logprobs)
            ][:1]
        self._full_precision |= not errors
        return FLOAT32_ERROR + max(errors, default=0.0)

    def _sum_error_of(self, raw: RawPosition) -> float:
        return self._sum_error if raw.summed_in_order else 0.0

    def _note(self, raw: RawPosition | LoggedPosition, finding: Finding) -> None:
        self.findings.note(finding, f"{self.name}:{raw.line}")

    def _refusal(self, raw: RawPosition, reason: str) -> UnreadableInput:
        return UnreadableInput(
            f"{self.name}:{raw.line}: {raw.part} position {raw.position}: {reason}"
        )


_PROCESSED = (
    "the list was processed (temperature 0, top-k, top-p or a mask) before it was logged: {}. Its "
    "certificate would "
    "mean nothing; log raw logprobs"
)


def _is_rounded(value: float, decimals: int) -> bool:
    """Whether the value has so few decimals, or is the float32 number nearest to one that has."""
    rounded = round(value, decimals)
    return rounded == value or _FLOAT32.unpack(_FLOAT32.pack(rounded))[0] == value


def _has_digits(value: float, digits: int) -> bool:
    """The same of significant digits."""
    rounded = float(f"{value:.{digits - 1}e}")
    return rounded == value or _FLOAT32.unpack(_FLOAT32.pack(rounded))[0] == value


def _has_few_digits(value: float) -> bool:
    """Whether the value looks rounded; few others do."""
    return (
        abs(round(value, _FEW_DECIMALS) - value) <= -value * 2.0**-23
        or _has_digits(value, _FEW_DIGITS)
        or (math.frexp(value)[0] * 2.0 ** _MANTISSAS[-1]).is_integer()
    )


def _usable(key: Key) -> Key:
    """The key, or None where it doesn't say which token it is."""
    if isinstance(key, int):
        return key
    if not key or (isinstance(key, str) and any(mark in key for mark in _NO_KEY_MARKS)):
        return None
    if isinstance(key, str) and not is_text(key):
        return None
    if isinstance(key, bytes) and (_REPLACED in key or not key.strip(b"\0")):
        return None
    return key


def is_text(text: str) -> bool:
    """Whether the string is text at all: half of a surrogate pair, as JSON can hold it, is none."""
    return text.isascii() or not any("\ud800" <= mark <= "\udfff" for mark in text)


def _id_order(key: Key) -> int:
    return key if isinstance(key, int) else 0

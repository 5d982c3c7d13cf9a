"""From bounded rows to answers: a price, noise of that scale, a line in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from torch import Tensor

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.oracle.batches import Draws
from fedpriv.oracle.questions import Question, Questions
from fedpriv.oracle.sums import scaled
from fedpriv.privacy.correlated import spread
from fedpriv.privacy.ledger import Ledger, Release, Witness
from fedpriv.privacy.mechanisms import EVERYBODY, add_noise
from fedpriv.privacy.pair_noise import of_answer, with_noise_of_own_pairs, with_pair_noise
from fedpriv.privacy.pairwise import Pairs, excess
from fedpriv.privacy.past_noise import PastNoise
from fedpriv.privacy.record import Record
from fedpriv.privacy.settings import Cyclic, Privacy
from fedpriv.randomness.streams import PairSecrets, Randomness


def here(rows: Tensor) -> Tensor:
    """The sum of rows that are all here, `[k, dim] -> [1, dim]`."""
    return rows.sum(0, keepdim=True)


class Noising(Questions):
    """Releases rows whose sensitivity is known, or their sum, with noise as the settings promise.

    Args:
        privacy: The privacy settings; a private run needs a `noise_multiplier`.
        sizes: See `Questions`.
        like: See there.
        draws: Says which block of examples really takes part.
        ledger: Records each release before its value is handed out.
        randomness: The run's random streams.
        total: Adds up the rows of all places, `[k, dim] -> [1, dim]`.
        secrets: What the one client that is here has agreed with the others; None where one process draws the noise of
            all pairs.

    Attributes:
        without: Participants of the round that have signed that they do not answer: the noise of their pairs is left
            out, and the others' own is priced as among those who are left. Only where pairs agree on secrets.
    """

    without: Collection[int] = ()

    def __init__(
        self,
        privacy: Privacy,
        sizes: Sequence[int],
        like: Tensor,
        draws: Draws,
        ledger: Ledger | Witness,
        randomness: Randomness,
        total: Callable[[Tensor], Tensor],
        secrets: PairSecrets | None = None,
    ) -> None:
        self.ledger, self._randomness, self._draws, self._total = ledger, randomness, draws, total
        self._secrets = secrets
        self._answered, self._answered_rows = -1, 0
        if secrets is not None and privacy.over_time is not None:
            fix = "noise that pairs have agreed on is new in every round: use independent noise"
            raise ConfigError("privacy.noise", "over time", fix)
        self._past = None if privacy.over_time is None else PastNoise(privacy.over_time.factor)
        super().__init__(privacy, sizes, like)

    def _open(self, release: Release) -> Tensor:
        value = self.ledger.open(release).to(self._like.dtype)
        self._answered = self._round
        self._index += 1
        return value

    def _noised(self, question: Question, bounded: Tensor, factors: Sequence[float]) -> Tensor:
        """Release `bounded` with noise, each row multiplied by its participant's public factor."""
        rows = scaled(bounded, self._of_here(factors))
        if self.privacy.trust.sums_only:
            return self._noised_sum(question, rows, max(factors, default=1.0))
        return self._noised_rows(question, rows, factors)

    def _noised_rows(self, question: Question, rows: Tensor, factors: Sequence[float]) -> Tensor:
        """Release rows whose sensitivity is that of one contribution times each participant's factor."""
        clients, at = self._clients, (self._round, self._index)
        paid = question.clip, question.share, self.without
        record, scales = self._pricing.price(*at, question.name, clients, factors, *paid)
        self._scales, self._pairs = scales, record.pairs
        own = [clients[place] for place in self._here.tolist()]
        shared = None
        if record.pairs is not None and self._past is not None:
            shared = self._shared(record, record.pairs, rows)
        elif record.pairs is not None and self._secrets is not None:
            answering = clients if record.clients is None else record.clients
            noise = scales, record.pairs, record, self._randomness, answering
            rows = with_noise_of_own_pairs(rows, *noise, own, self._secrets)
        elif record.pairs is not None:
            every = self._among_all(rows)
            hidden = with_pair_noise(every, scales, record.pairs, record, self._randomness, clients)
            rows = self._among_here(hidden)
        noise = self.privacy.mechanism, self._with_turn(record), self._randomness
        return self._open(add_noise(rows, self._of_here(scales), *noise, own, past=self._past, shared=shared))

    def _shared(self, record: Record, pairs: Pairs, rows: Tensor) -> Callable[[int], Tensor] | None:
        """Noise of the pairs in any round, for the rows that are here, over the deviation of a client's own."""
        if pairs.ratio == 0 or self.n_clients < 2:
            return None

        def drawn(round_index: int) -> Tensor:
            at = round_index, record.index, self._clients, rows.shape[1]
            return self._among_here(of_answer(pairs, self._randomness, *at)).to(rows.device)

        return drawn

    def _noised_sum(self, question: Question, rows: Tensor, largest: float) -> Tensor:
        """Release the sum of rows whose sensitivity is at most that of one contribution times `largest`.

        Every row of the answer is the mean over the participants: whatever is made of the rows afterwards is made of
        what was released.
        """
        clients, parties, at = self._clients, self._pricing.parties, (self._round, self._index)
        senders = self._senders
        record, scales = self._pricing.price(*at, question.name, clients, [largest], question.clip, question.share)
        if senders < parties:
            raise PrivacyError(
                f"round {self._round} has {senders} participants, fewer than min_honest = {parties}, who share "
                f"the noise (trust: {self.privacy.trust})"
            )
        # the shares of all who take part, drawn as one
        noise = self.privacy.mechanism, self._with_turn(record), self._randomness, [EVERYBODY], senders / parties
        self._scales = scales
        mean = self._open(add_noise(self._total(rows), scales, *noise, past=self._past)) / len(clients)
        return mean.expand(self._answered_rows, -1)

    @property
    def _senders(self) -> int:
        """Number of clients that send a share of the noise; with noise over time all, which cancels earlier rounds'."""
        return len(self._clients) if self.privacy.over_time is None else self.n_clients

    def _with_turn(self, record: Record) -> Record:
        """The record with the block of examples or clients that really takes part; the accountant compares."""
        if record.time is None or record.time.separation == 1:
            return record
        sampling, clients = self.privacy.sampling, self._clients
        if self.privacy.unit == "sample" and isinstance(sampling, Cyclic):
            return replace(record, time=replace(record.time, slot=self._draws.slot(sampling)))
        blocks = record.time.separation
        if list(clients) != list(range(clients[0], self.n_clients, blocks)):
            raise PrivacyError(f"round {self._round}: those who take part are none of the {blocks} blocks of clients")
        return replace(record, time=replace(record.time, slot=clients[0]))

    def _among_all(self, rows: Tensor) -> Tensor:
        """Rows for every participant, zero where they are not here."""
        if len(rows) == len(self._clients):
            return rows
        return rows.new_zeros(len(self._clients), rows.shape[1]).index_copy(0, self._here.to(rows.device), rows)

    def _among_here(self, rows: Tensor) -> Tensor:
        """The rows of those of the participants that are here."""
        return rows if len(self._here) == len(rows) else rows[self._here.to(rows.device)]

    def _variances(self) -> tuple[Sequence[float], Sequence[float]]:
        """See `Questions`."""
        if not self.privacy.private:
            return super()._variances()
        clients, over_time = self._clients, self.privacy.over_time
        more = 1.0 if over_time is None else float(spread(over_time.factor, self._round + 1)[-1])
        own = [(self.privacy.mechanism.deviation * scale) ** 2 * more for scale in self._scales]
        if self.privacy.trust.sums_only:  # every row is the mean, with the shares of all who take part
            of_mean = [
                own[0] * (self._senders / len(clients)) / (len(clients) * self._pricing.parties)
            ] * self._answered_rows
            return of_mean, of_mean
        more = excess(self._pairs, self.n_clients)
        rows = [one * more[client] ** 2 for one, client in zip(own, clients, strict=True)]
        return self._of_here(rows), self._of_here([one / len(clients) for one in own])  # noise of pairs cancels there

    def _of_here(self, values: Sequence[float]) -> list[float]:
        """Those of the participants that are here, of values for every participant."""
        return [values[place] for place in self._here.tolist()]

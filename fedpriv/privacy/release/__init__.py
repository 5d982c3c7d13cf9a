"""Release schemes, one for each kind of trust. A file contains the sensitivity, privacy cost and noise of one scheme.

`local`: every client adds noise to its row. `pairwise`: every client adds less noise to its row, and noise that cancels
between pairs of clients. `sums`: only the sum over clients is released (secure aggregation, or a trusted server). Noise
that is correlated between rounds can be used with each scheme, because `NoiseStreams.history` filters the unit noise
that the scheme draws.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.errors import ConfigError
from fedpriv.privacy.pairwise import Pairwise
from fedpriv.privacy.release.local import LocalRelease
from fedpriv.privacy.release.pairwise import PairwiseRelease
from fedpriv.privacy.release.scheme import Answer, NoiseStreams, PlannedRelease, ReleaseScheme
from fedpriv.privacy.release.sums import SumRelease
from fedpriv.privacy.settings import Central, Local, Privacy, SecureAggregation

__all__ = ["Answer", "NoiseStreams", "PlannedRelease", "ReleaseScheme", "release_scheme"]


def release_scheme(privacy: Privacy, sizes: Sequence[int] | Sequence[float]) -> ReleaseScheme:
    """Returns the release scheme of a run with these settings.

    Args:
        privacy: The privacy settings.
        sizes: Public number of examples of each client.

    Raises:
        ConfigError: If the trust has no release scheme.
    """
    trust = privacy.trust
    if isinstance(trust, Central | SecureAggregation):
        return SumRelease(privacy, sizes)
    if isinstance(trust, Pairwise):
        return PairwiseRelease(privacy, sizes)
    if isinstance(trust, Local):  # pyright: ignore[reportUnnecessaryIsInstance] - a trust may be added
        return LocalRelease(privacy, sizes)
    raise ConfigError(
        "privacy.trust",
        str(trust),
        "no release scheme is written for this trust; choose another trust, or write one in fedpriv/privacy/release",
    )

"""Checks a plan for a site's owner: whether it has the site, what it costs, and whether the site's policy allows it.

The price of a plan can take endless time to compute: of 10^12 rounds, for example. A plan that arrives over the wire,
before anybody has looked at it, is therefore reviewed in a process of its own, which ends after a few seconds.
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import time

from fedpriv.errors import ConfigError, FedprivError
from fedpriv.settings import refuse_plugins
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.policy import SitePolicy
from fedpriv.sites.resolved_plan import ResolvedPlan

REVIEW_SECONDS = 20
"""Seconds of processor time in which a plan that arrives over the wire must be priced."""
LONGEST_REVIEW = 120
"""Seconds on the clock after which such a review ends, however busy the machine is."""
_ROUNDED = 1 + 1e-6  # a price that is computed again differs by rounding
_COMMAND = "from fedpriv.sites.plan_review import review_from_stdin; review_from_stdin()"
_TOO_LONG = (
    "needs more than {} s of processor time, or all memory, to compute its privacy cost: propose fewer rounds, "
    "local steps or sites; or the owner, who can wait longer, joins manually (fedpriv site join)"
)
_LOG = logging.getLogger(__name__)


def review(text: str, card: SiteDescriptor, policy: SitePolicy) -> tuple[FederationPlan, ResolvedPlan]:
    """Reads, resolves and prices a plan. How long that takes is for the plan to say.

    Args:
        text: The plan.
        card: The site's card.
        policy: What the site's owner allows.

    Raises:
        ConfigError: the text is no plan, or does not have this site, is refused between organisations, or costs more
            epsilon than its settings state, or the policy does not allow it.
    """
    proposal = FederationPlan.read(text)
    if proposal.cards[proposal.number_of(card.name, card.key)] != card:
        raise ConfigError("plan.sites", card.name, "the plan contains another card of this site")
    policy.check_settings(proposal.config(), proposal.outline)
    terms = ResolvedPlan.of(proposal)
    stated = terms.plan.privacy.epsilon
    actual = terms.plan.spent().epsilon
    if stated is not None and actual > stated * _ROUNDED:
        raise ConfigError("plan.privacy.epsilon", stated, f"its noise costs {actual:.4g}: do not accept it")
    policy.check(terms)
    return proposal, terms


def review_within(text: str, card: SiteDescriptor, policy: SitePolicy, seconds: int = REVIEW_SECONDS) -> None:
    """Reviews a plan of a stranger in another process, in which it may name no code, and which ends in time.

    Args:
        text: The plan.
        card: The site's card.
        policy: What the site's owner allows.
        seconds: The most processor time that the review may take, beside two minutes on the clock: the only limit where
            the system has no other (Windows).

    Raises:
        FedprivError: see `review`, or the review took longer or failed. The plan is not accepted.
    """
    document = {
        "text": text,
        "card": card.model_dump(mode="json"),
        "policy": policy.model_dump(mode="json"),
        "seconds": seconds,
    }
    try:
        # -P: a module in the current folder must not stand in for another one
        done = subprocess.run(
            [sys.executable, "-P", "-c", _COMMAND],
            input=json.dumps(document).encode(),
            capture_output=True,
            timeout=LONGEST_REVIEW,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        raise ConfigError("plan.settings.rounds", "(and others)", _TOO_LONG.format(seconds)) from None
    except OSError as error:
        raise FedprivError(f"a proposal could not be reviewed: no process could be started ({error})") from error
    if done.returncode < 0:  # ended by a signal: SIGXCPU, or SIGKILL where memory runs out
        raise ConfigError("plan.settings.rounds", "(and others)", _TOO_LONG.format(seconds))
    try:
        refusal = json.loads(done.stdout.splitlines()[-1])["refusal"]
    except (ValueError, KeyError, TypeError, IndexError):
        _LOG.warning("the review of a proposal failed: %s", done.stderr.decode(errors="replace")[-2000:])
        raise FedprivError("a proposal could not be reviewed; see the log") from None
    if refusal is not None:
        raise FedprivError(str(refusal))


def review_from_stdin() -> None:
    """Reviews the plan that `review_within` writes to standard input, and writes why it is refused, or null."""
    document = json.loads(sys.stdin.buffer.read())
    _limit_processor_time(document["seconds"])
    card = SiteDescriptor.model_validate(document["card"])
    policy = SitePolicy.model_validate(document["policy"])
    refusal = None
    try:
        with refuse_plugins():
            review(document["text"], card, policy)
    except FedprivError as error:
        refusal = str(error)
    sys.stdout.write(json.dumps({"refusal": refusal}) + "\n")


def _limit_processor_time(seconds: int) -> None:
    """Ends this process after so many more seconds of processor time, and lets others go first."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    os.nice(10)
    limit = math.ceil(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))

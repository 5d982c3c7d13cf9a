"""Turns the bytes of a question into the bytes of a reply: an answer of the plan's session, or a refusal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from fedpriv.errors import BudgetExhausted
from fedpriv.privacy.accounting import UnplannedRelease
from fedpriv.sites.absence_notice import InvalidNotice
from fedpriv.sites.activity import Activity
from fedpriv.sites.messages import Code, MalformedMessage, TrainRequest, TrainResponse, pack, unpack_request
from fedpriv.sites.on_record import RolledBack, check_rollback
from fedpriv.sites.reply_counter import InvalidCounter
from fedpriv.sites.site_folder import SiteFolder
from fedpriv.sites.site_plans import SitePlans

_LOG = logging.getLogger(__name__)


class Responder:
    """Answers the questions of a site's plans.

    Guarantee: what it returns is an answer of a plan's session, or one of a few codes.

    Args:
        folder: The site's folder.
        plans: The site's plans.
        activity: Counts answers and refusals.
    """

    def __init__(self, folder: SiteFolder, plans: SitePlans, activity: Activity) -> None:
        self._folder = folder
        self._plans = plans
        self._activity = activity

    def respond(self, question: bytes, party: str, accept_approved: Callable[[], None], *, from_node: bool) -> bytes:
        """Returns the reply to a question, or a refusal. Whoever calls it holds the site's lock.

        Args:
            question: The bytes that arrived.
            party: Who sent them, as the transport knows it, for the log.
            accept_approved: Accepts the plans that the owner has approved since.
            from_node: Whether the site's own node asks.

        Raises:
            FedprivError: a file of the site cannot be read.
        """
        try:
            if len(question) > self._plans.longest_question():
                raise MalformedMessage("longer than any question of the site's plans")
            request = unpack_request(question)
        except MalformedMessage:
            self._activity.count_refusal(party, "", 0, "malformed")
            return pack(refusal("", 0, "malformed"))
        except RolledBack as error:
            _LOG.error("%s", error)
            return pack(refusal("", 0, "rolled_back"))
        reply = self._reply_to(request, accept_approved, from_node=from_node)
        if isinstance(reply, bytes):
            self._activity.count_answer(party, request.plan, request.round)
            return reply
        assert reply.code is not None
        self._activity.count_refusal(party, request.plan, request.round, reply.code)
        return pack(reply)

    def _reply_to(
        self, request: TrainRequest, accept_approved: Callable[[], None], *, from_node: bool
    ) -> TrainResponse | bytes:
        """Returns the reply to a question, as bytes if it is an answer; a refusal otherwise."""
        plan = request.plan
        round_index = request.round
        try:
            if plan not in self._plans.accepted:
                accept_approved()
            if plan not in self._plans.accepted:
                self._check_unknown_plan(request)
                return refusal("", round_index, "other_plan")
            if not self._folder.settings.policy.is_open():
                return refusal(plan, round_index, "closed")
            session = self._plans.session(plan)
            if session.terms.is_graph is not from_node:
                return refusal("", round_index, "other_plan")
            return session.answer(request)
        except BudgetExhausted:
            return refusal(plan, round_index, "over_budget")
        except UnplannedRelease:
            return refusal(plan, round_index, "not_as_planned")
        except InvalidNotice:
            return refusal(plan, round_index, "bad_notice")
        except InvalidCounter:
            return refusal(plan, round_index, "bad_counter")
        except RolledBack as error:
            _LOG.error("%s", error)
            return refusal("", round_index, "rolled_back")
        except MalformedMessage:
            return refusal(plan, round_index, "malformed")
        except Exception:  # whatever it is: its text may hold data, so it stays here
            _LOG.exception("a question was not answered")
            return refusal(plan, round_index, "failed")

    def _check_unknown_plan(self, request: TrainRequest) -> None:
        """Checks that this site has signed nothing under a plan that its folder does not have.

        Raises:
            RolledBack: it has, so that the folder is older than the plan.
        """
        counter = request.counter
        if counter is None:
            return
        for key in self._folder.keys.verifying_keys:
            with suppress(InvalidCounter):  # of another key than this site's: no proof of anything
                counter.check(request.plan, counter.site, key)
                self._folder.remember_rollback(counter)
                check_rollback(self._folder.path)


def refusal(plan: str, round_index: int, code: Code) -> TrainResponse:
    """Returns a refusal that is not of a plan's session: it has no counts and no notices."""
    return TrainResponse(plan, round_index, None, code)

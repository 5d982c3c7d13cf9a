"""Converts the bytes of a request to the bytes of a reply: a reply of the plan's session, or a refusal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from fedpriv.errors import BudgetExhausted
from fedpriv.privacy.accounting import UnplannedRelease
from fedpriv.sites.absence_notice import InvalidNotice
from fedpriv.sites.activity import Activity
from fedpriv.sites.messages import Code, MalformedMessage, TrainRequest, TrainResponse, pack, unpack_request
from fedpriv.sites.reply_counter import InvalidCounter
from fedpriv.sites.site_folder import SiteFolder
from fedpriv.sites.site_plans import SitePlans
from fedpriv.sites.site_records import RolledBack, check_rollback

_LOG = logging.getLogger(__name__)


class Responder:
    """Replies to the requests of a site's plans.

    Guarantee: the returned bytes are a reply of a plan's session or one of a few codes.

    Args:
        folder: The site's folder.
        plans: The site's plans.
        activity: Counts replies and refusals.
    """

    def __init__(self, folder: SiteFolder, plans: SitePlans, activity: Activity) -> None:
        self._folder = folder
        self._plans = plans
        self._activity = activity

    def respond(self, question: bytes, party: str, accept_approved: Callable[[], None], *, from_node: bool) -> bytes:
        """Returns the reply to a request, or a refusal. The caller must hold the site's lock.

        Args:
            question: The bytes that arrived.
            party: Sender of the bytes, by its name in the transport, for the log.
            accept_approved: Accepts the plans that the owner has approved since.
            from_node: True if the request comes from the site's own node.

        Raises:
            FedprivError: If a file of the site cannot be read.
        """
        try:
            if len(question) > self._plans.longest_question():
                raise MalformedMessage("the request is longer than any request of the site's plans")
            request = unpack_request(question)
        except MalformedMessage:
            self._activity.count_refusal(party, "", 0, "malformed")
            return pack(make_refusal("", 0, "malformed"))
        except RolledBack as error:
            _LOG.error("%s", error)
            return pack(make_refusal("", 0, "rolled_back"))
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
        """Returns the reply to a request, as bytes unless it is a refusal."""
        plan = request.plan
        round_index = request.round
        try:
            if plan not in self._plans.accepted:
                accept_approved()
            if plan not in self._plans.accepted:
                self._check_unknown_plan(request)
                return make_refusal("", round_index, "other_plan")
            if not self._folder.settings.policy.is_open():
                return make_refusal(plan, round_index, "closed")
            session = self._plans.session(plan)
            if session.resolved_plan.is_graph is not from_node:
                return make_refusal("", round_index, "other_plan")
            return session.answer(request)
        except BudgetExhausted:
            return make_refusal(plan, round_index, "over_budget")
        except UnplannedRelease:
            return make_refusal(plan, round_index, "not_as_planned")
        except InvalidNotice:
            return make_refusal(plan, round_index, "bad_notice")
        except InvalidCounter:
            return make_refusal(plan, round_index, "bad_counter")
        except RolledBack as error:
            _LOG.error("%s", error)
            return make_refusal("", round_index, "rolled_back")
        except MalformedMessage:
            return make_refusal(plan, round_index, "malformed")
        except Exception:  # the text of any exception may contain data, so it is kept here
            _LOG.exception("a request was not answered")
            return make_refusal(plan, round_index, "failed")

    def _check_unknown_plan(self, request: TrainRequest) -> None:
        """Checks that this site has signed nothing under a plan that is missing in its folder.

        Raises:
            RolledBack: If it has, so that the folder is older than the plan.
        """
        counter = request.counter
        if counter is None:
            return
        for key in self._folder.keys.verifying_keys:
            with suppress(InvalidCounter):  # signed with another key than this site's, so it proves nothing
                counter.check(request.plan, counter.site, key)
                self._folder.remember_rollback(counter)
                check_rollback(self._folder.path)


def make_refusal(plan: str, round_index: int, code: Code) -> TrainResponse:
    """Returns a refusal that is not from a plan's session: it has no counter and no notices."""
    return TrainResponse(plan, round_index, None, code)

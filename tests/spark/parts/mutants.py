"""Deliberate bugs of prepared parts, each of which the simulator has to catch.

Each is one replacement of text in one file, as in `tests.sim.mutants`.
`tests/data/parts_mutants.json` says by which seed each was caught.
"""

from __future__ import annotations

from tests.sim.mutants import Mutant

_RUNS = "spark/driver/prepared_runs.py"
_BATCH = "spark/driver/prepared_batch.py"
_IDS = "spark/driver/part_ids.py"
_TASK = "spark/tasks/prepared_part.py"
_NAMES = "spark/ledger/decided_runs.py"

MUTANTS = (
    # --- the claim, and the lease --------------------------------------------------------------
    Mutant(
        "no-claim",
        "_core/transactions/leasing.py",
        "        if claimed != expected:\n",
        "        if False:\n",
        "any attempt may write that has the lease",
    ),
    Mutant(
        "identity-leased-twice",
        _IDS,
        "self._taken.pop(slot) for slot in wanted}",
        "self._taken[slot] for slot in wanted}",
        "an id that is held is held for the next batch as well",
    ),
    Mutant(
        "lease-of-rows-only",
        _TASK,
        'recovery="resume", lease=self._lease, **measured)',
        'recovery="resume", lease=measured["rows"] + (not self._slot.number) and self._lease or None, **measured)',
        "a part without rows needs no end",
    ),
    Mutant(
        "entry-left-out",
        _TASK,
        "        config = config_for(task.settings, lease.transactional_id)\n",
        "        return lease\n",
        "the decision says enough about a part",
    ),
    Mutant(
        "entry-of-no-rows-left-out",
        _TASK,
        "        config = config_for(task.settings, lease.transactional_id)\n",
        "        if not self._rows.count:\n"
        "            return lease\n"
        "        config = config_for(task.settings, lease.transactional_id)\n",
        "a part without rows has nothing to note",
    ),
    # --- the decision --------------------------------------------------------------------------
    Mutant(
        "ends-before-the-decision",
        _BATCH,
        "            if order.decision:\n"
        "                self._runs.decide(self._batch, leases, self._settings, "
        "self._run_entry(ours))\n"
        '                self._tell("batch_decided", ours)\n'
        "            over = self._runs.ids.end(leases, self._settings, is_commit=True)\n",
        "            over = self._runs.ids.end(leases, self._settings, is_commit=True)\n"
        "            if order.decision:\n"
        "                self._runs.decide(self._batch, leases, self._settings, "
        "self._run_entry(ours))\n"
        '                self._tell("batch_decided", ours)\n',
        "all parts are written, so their order with the decision does not matter",
    ),
    Mutant(
        "two-parts-need-no-decision",
        _BATCH,
        "            if order.decision:\n",
        "            if len(ours) > 2:\n",
        "the decision is for batches of many parts",
    ),
    Mutant(
        "half-a-decision-counts",
        _RUNS,
        "            with self._planning(settings) as producer, producer.transaction():\n"
        "                # The plan as well, so that it expires no sooner than the decision.\n"
        "                if plan is not None:\n"
        "                    self._ledger.write_plan(producer, plan)\n"
        "                self._ledger.write_decision(producer, decision)\n",
        "            with self._planning(settings) as producer:\n"
        "                _write_pieces(self._ledger, producer, plan, decision)\n",
        "a decision is read as far as it is there, and each piece has a transaction of its own",
    ),
    Mutant(
        "no-reserve-of-time",
        _BATCH,
        "        if timeout_s - seconds >= max(LEAST_LEFT_S, _LEAST_SHARE * timeout_s):\n",
        "        if True:\n",
        "the time-out ends late parts anyway",
    ),
    Mutant(
        "decision-in-doubt-is-undone",
        _BATCH,
        "            self._runs.leave()  # the next run reads the decision, and ends what is left\n",
        "            self._abort(order, error)\n",
        "a batch that could not be decided or ended is aborted",
    ),
    # --- the ends ------------------------------------------------------------------------------
    Mutant(
        "unclear-end-is-believed",
        _IDS,
        "                unclear[slot] = result.error\n",
        "                pass\n",
        "an end that was sent has arrived",
    ),
    Mutant(
        "part-that-is-over-is-committed",
        _BATCH,
        "        if over:\n",
        "        if False:\n",
        "a part that cannot be ended has been ended before",
    ),
    # --- the take-over -------------------------------------------------------------------------
    Mutant(
        "take-over-before-the-decision-is-read",
        _RUNS,
        "        self._roll_forward(settings)\n\n    def _fence(",
        "        self.ids.take(range(self._first_look.known_partitions()), settings)\n"
        "        self._roll_forward(settings)\n\n    def _fence(",
        "the ids are taken first, so that nobody changes a part while the decision is read",
    ),
    Mutant(
        "ids-before-the-plans-id",
        _RUNS,
        "        run = super().enter(batch, settings)\n",
        "        self.ids.take(range(self._first_look.known_partitions()), settings)\n"
        "        run = super().enter(batch, settings)\n",
        "a driver that begins shuts out all others first",
    ),
    Mutant(
        "nothing-is-rolled-forward",
        _RUNS,
        "        self._roll_forward(settings)\n\n    def _fence(",
        "        pass\n\n    def _fence(",
        "the batch comes again anyway",
    ),
    Mutant(
        "entry-of-the-batch-before-counts",
        "spark/ledger/decisions.py",
        "        return (entry.batch_id, entry.decision) == (self.batch.batch_id, self.number)\n",
        "        return self.batch.batch_id - 1 <= entry.batch_id <= self.batch.batch_id\n",
        "the decision before is about the same slots",
    ),
    # --- a driver that was replaced ------------------------------------------------------------
    Mutant(
        "young-entries-are-taken-over",
        "spark/ledger/take_over.py",
        "            and not (entry.query_id == query_id and self._is_younger(entry))\n",
        "",
        "what the first look finds is old",
    ),
    Mutant(
        "entry-ahead-shows-a-commit",
        "spark/ledger/decisions.py",
        "        return (entry.batch_id, entry.decision) == (self.batch.batch_id, self.number)\n",
        "        is_later = entry.batch_id > self.batch.batch_id\n"
        "        exact = (entry.batch_id, entry.decision) == (self.batch.batch_id, self.number)\n"
        "        return is_later or exact\n",
        "an entry that is ahead is of a later batch",
    ),
    # --- the rest of a batch -------------------------------------------------------------------
    Mutant(
        "some-parts-are-the-batch",
        "spark/ledger/rules.py",
        "    return writers == {len(done)} and set(done) == set(range(len(done)))\n",
        "    return bool(writers)\n",
        "a batch that is committed is committed whole",
    ),
    Mutant(
        "rest-of-a-batch-by-number",
        _BATCH,
        "            slots = assign_slots(\n"
        "                self._batch.name, done, dict(enumerate(found)), "
        "self._on_replay_mismatch\n"
        "            )\n",
        "            del found\n",
        "the partitions of a batch have the same numbers again",
    ),
    # --- named runs ----------------------------------------------------------------------------
    Mutant(
        "run-without-an-entry",
        _RUNS,
        "                if entry is not None:\n",
        "                if False:\n",
        "the decision has the name of the run",
    ),
    Mutant(
        "run-is-entered-before-its-decision",
        _RUNS,
        "            with self._planning(settings) as producer, producer.transaction():\n"
        "                # The plan as well, so that it expires no sooner than the decision.\n",
        "            with self._planning(settings) as producer, producer.transaction():\n"
        "                if entry is not None:\n"
        "                    write_run(topic_ledger(self._ledger), producer, entry.name,\n"
        "                              replace(entry, decision=decision.number))\n"
        "            with self._planning(settings) as producer, producer.transaction():\n"
        "                # The plan as well, so that it expires no sooner than the decision.\n",
        "an entry that is there twice does no harm",
    ),
    Mutant(
        "decided-run-counts-as-whole",
        _NAMES,
        "    if not lost:\n        return RunState(entry)\n",
        "    return RunState(entry)\n",
        "what is decided is committed",
    ),
    Mutant(
        "torn-run-is-overtaken",
        _NAMES,
        "    if lost:\n        torn = decision.batch\n",
        "    if False:\n        torn = decision.batch\n",
        "names have no order, so any run may be next",
    ),
    Mutant(
        "run-that-was-written-again-stays-torn",
        _NAMES,
        "        if entry is None or entry.decision != decision.number:\n",
        "        if entry is None:\n",
        "the last decision is about the last run that was decided",
    ),
    Mutant(
        "refresh-takes-the-plan-alone",
        _RUNS,
        "            with self._planning(settings):\n"
        "                self._roll_forward(settings)\n",
        "",
        "a refresh finds no decided parts, since its driver has ended them",
    ),
)

# Found in runs with names: `python -m tests.spark.parts --names`.
NAMED = frozenset(
    {
        "run-without-an-entry",
        "run-is-entered-before-its-decision",
        "decided-run-counts-as-whole",
        "torn-run-is-overtaken",
        "part-of-a-run-by-its-name",
        "run-that-was-written-again-stays-torn",
    }
)

# Not caught by the seeds that were tried so far.
MISSED: tuple[Mutant, ...] = (
    Mutant(
        "no-look-before-a-small-batch",
        _BATCH,
        "            self.runs.check_not_replaced()\n        return super()._attempt(*args)\n",
        "            pass\n        return super()._attempt(*args)\n",
        "the driver's own producer is fenced if there is another driver",
    ),
    Mutant(
        "no-look-before-a-run-takes-ids",
        _RUNS,
        "        self._check_last(plan)\n        self.ids.take",
        "        self.ids.take",
        "the plan was committed a moment ago",
    ),
    Mutant(
        "no-look-before-ids-are-taken",
        _RUNS,
        "            self.check_not_replaced()\n            self.ids.take(missing, settings)\n",
        "            self.ids.take(missing, settings)\n",
        "the look after it is enough",
    ),
    Mutant(
        "unclear-roll-forward-goes-on",
        _RUNS,
        "        for slot, error in self.ids.end(left, settings, is_commit=True).items():\n",
        "        for slot, error in _ended(self, left, settings).items():\n",
        "what the take-over could not end, the replay completes",
    ),
    Mutant(
        "no-look-after-ids-are-taken",
        _RUNS,
        "            self.ids.take(missing, settings)\n            self.check_not_replaced()\n",
        "            self.ids.take(missing, settings)\n",
        "the look before it is enough",
    ),
    Mutant(
        "no-look-when-a-failed-batch-begins-again",
        _RUNS,
        "            self.check_not_replaced()\n        self._plan = self._begun = None\n",
        "            pass\n        self._plan = self._begun = None\n",
        "whoever begins a run may do so",
    ),
    Mutant(
        "no-look-before-an-id-is-refreshed",
        _RUNS,
        "        check_run(found, plan.run, plan.query_id)\n"
        "        super()._refresh(slot, plan, settings)\n",
        "        super()._refresh(slot, plan, settings)\n",
        "the look after it is enough",
    ),
    Mutant(
        "parts-cut-otherwise-complete-a-batch",
        "spark/ledger/rules.py",
        "        if is_whole(done) or all(entry.writers == writers for entry in done.values()):\n",
        "        if True:\n",
        "a batch that comes again is cut as it was",
    ),
    Mutant(
        "part-of-a-run-by-its-name",
        "spark/ledger/decisions.py",
        "            return (entry.run_id, entry.decision) == (self.batch.run_id, self.number)\n",
        "            return entry.run_id == self.batch.run_id\n",
        "the entry of a slot names the run",
    ),
)

HELPERS = {
    "half-a-decision-counts": """

def _write_pieces(ledger, producer, plan, decision):
    for number, stored in enumerate(decision.stored()):
        with producer.transaction():
            if plan is not None:
                ledger.write_plan(producer, plan)
            ledger._write(producer, ledger.decision_group(number), stored)


def _as_far_as_it_is_there(offsets):
    import json, re
    from txnproducer.records import ProducerIdAndEpoch

    stored = [one.stored for one in offsets]
    number = max(one.offset for one in stored)
    text = "".join(json.loads(one.metadata)["text"] for one in stored if one.offset == number)
    batch = re.match(r\'{"batch":\\[(\\d+),"([^"]*)",(\\d+)\\],"v2":(true|false)\', text)
    if batch is None:
        return None
    parts = re.findall(r"\\[(\\d+),(\\d+),(\\d+)\\]", text.partition("parts")[2])
    found = {int(s): ProducerIdAndEpoch(int(p), int(e)) for s, p, e in parts}
    whole = LedgerBatch(int(batch[1]), batch[2], int(batch[3]))
    return Decision(number, whole, batch[4] == "true", found)


import txnproducer.spark.ledger.store as _store

_store.parse_decision = _as_far_as_it_is_there
""",
    "unclear-roll-forward-goes-on": """

def _ended(runs, left, settings):
    try:
        return runs.ids.end(left, settings, is_commit=True)
    except Exception:
        return {}
""",
}

"""Evidence -> who was tested: what was declared, what was seen with its source, and how the two compare. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sweep import outdir
from sweep.errors import EvidenceError, PlanError
from sweep.evidence import Evidence
from sweep.plan import SweepPlan
from sweep.process_table import subject_of
from sweep.subject import AnsweredVersion, Compared, compare, not_the_build

LINE_LENGTH = 60  # of the first screen's line
SHOWN_DIGITS = 12
_EXE = "/proc/PID/exe"


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of the build. answers: before the load. changes: what was another one later, in words.

    exe, digest, container_id: of the watched process; None without one, or where it could not be read (why).
    rows: everything seen, as result.json's `subject.seen`.
    """

    answers: tuple[AnsweredVersion, ...] = ()
    later: tuple[AnsweredVersion, ...] = ()
    changes: tuple[str, ...] = ()
    again: bool = True
    asked_why: str | None = None
    has_process: bool = False
    exe: str | None = None
    exe_why: str | None = None
    is_deleted: bool = False
    digest: str | None = None
    container_id: str | None = None
    rows: tuple[Mapping[str, str], ...] = ()

    @property
    def no_build(self) -> str | None:
        """Why the program does not identify the build, or None when it does."""
        if not self.has_process:
            return "no --gateway-pid"
        if self.exe is None or self.digest is None:
            return f"the program cannot be read ({self.exe_why or 'no reason recorded'})"
        return not_the_build(self.exe)


def seen(ev: Evidence) -> Seen:
    """Out of run.json and the snapshots."""
    subject = subject_of(ev)
    identity: Mapping[str, Any] = {} if subject is None else subject.get("seen") or {}
    asked = ev.run.get("answered") or {}
    rows = [row for row in asked.get("rows") or [] if isinstance(row, dict)]
    answers = _answers(rows)
    ordered = sorted(ev.snapshots.items(), key=lambda item: (item[1].get("t_mono_ns") or 0, item[0]))
    rounds = [(mark, each["answered"]) for mark, each in ordered if each.get("answered") is not None]
    later = [(mark, _answers(each.get("rows") or [])) for mark, each in rounds]
    exe, digest = identity.get("exe"), identity.get("exe_sha256")
    programs = [(mark, (each.get("identity") or {}).get("exe_sha256")) for mark, each in ordered]
    return Seen(
        answers=answers,
        later=tuple(dict.fromkeys(answer for _, each in later for answer in each)),
        changes=(*_changed_answers(answers, later), *_changed_program(digest, programs)),
        again=not answers or bool(later and later[-1][1]),
        asked_why=asked.get("why"),
        has_process=subject is not None,
        exe=exe,
        exe_why=_unreadable(subject),
        is_deleted=any((each.get("identity") or {}).get("exe_deleted") is True for _, each in ordered)
        or identity.get("exe_deleted") is True,
        digest=digest,
        container_id=identity.get("container_id"),
        rows=tuple(_rows(identity, rows)),
    )


def compare_version(plan: SweepPlan, of: Seen) -> Compared:
    """How the version that --subject declares compares with what was answered, before the load and after it."""
    try:
        return compare(plan.subject or "", (*of.answers, *of.later), of.asked_why)
    except PlanError as error:  # the run refused such a text, so the file is not as the run wrote it
        raise EvidenceError(f"{outdir.RUN}: {error}; the file was changed or damaged") from error


def compare_digest(plan: SweepPlan, of: Seen) -> tuple[Literal["equal", "differs", "incomparable"], str]:
    """How --subject-digest compares with the running program's own sha256, and the reason."""
    wanted = (plan.subject_digest or "").partition(":")[2].lower()
    no_build = of.no_build
    if of.digest is None or of.exe is None:
        return "incomparable", f"not compared: {no_build}"
    if no_build is not None:
        own = "is that of the interpreter itself" if wanted == of.digest else "cannot be compared"
        return "incomparable", f"{own}: {no_build}, its file does not identify the build"
    if wanted == of.digest:
        return "equal", f"the running program {of.exe} has it"
    if of.container_id is not None:
        return "incomparable", (
            f"not comparable: the program in container {of.container_id[:SHOWN_DIGITS]} has sha256:{of.digest}; "
            "an image's digest is not to be seen from a process"
        )
    return "differs", f"the running program {of.exe} has sha256:{of.digest}: another build, or the digest of an image"


def subject_json(plan: SweepPlan, of: Seen) -> dict[str, Any]:
    """result.json's `subject`."""
    compared = None if plan.subject is None else compare_version(plan, of)
    digest = None if plan.subject_digest is None else compare_digest(plan, of)
    answer = next(iter(of.answers), None) if compared is None or compared.answer is None else compared.answer
    build_known = bool(of.answers) or of.no_build is None
    return {
        "declared": plan.subject,
        "digest": plan.subject_digest,
        "answered": None if answer is None else {"version": answer.version, "source": answer.source},
        "build_known": build_known,
        "seen": [dict(row) for row in of.rows],
        "changes": list(of.changes),
        "text": _clip(_line(plan, of, compared, digest is not None and digest[0] == "equal")),
    }


def _line(plan: SweepPlan, of: Seen, compared: Compared | None, has_digest: bool) -> str:
    """The first screen's line."""
    if of.changes:
        return f"changed during the run: {of.changes[0]}"
    if compared is not None:
        answer = compared.answer
        if answer is not None and compared.how == "equal":
            return f"{plan.subject}, as {answer.source} answers"
        if answer is not None and compared.how == "differs":
            return f"answers {answer.version}, declared {plan.subject}"
        if compared.how == "both":
            return f"{plan.subject} declared, other versions answer too"
        if has_digest:
            return f"{plan.subject} declared, program sha256 as declared"
        told = f"it answers as {_named(of.answers[0])}" if of.answers else "no answer to check it"
        return f"{plan.subject} declared, {told}"
    name = None if of.exe is None else of.exe.removesuffix(" (deleted)").rpartition("/")[2]
    if has_digest:
        return f"{name}, program sha256 as declared"
    if of.answers:
        return f"{_named(of.answers[0])} ({of.answers[0].source})"
    if of.no_build is None and of.digest is not None:
        return f"{name}, sha256 {of.digest[:SHOWN_DIGITS]}…"
    return f"build unknown ({of.no_build})"


def _named(answer: AnsweredVersion) -> str:
    return f"{answer.product or 'version'} {answer.version}"


def _clip(text: str) -> str:
    return text if len(text) <= LINE_LENGTH else text[: LINE_LENGTH - 1] + "…"


def _answers(rows: Sequence[Mapping[str, Any]]) -> tuple[AnsweredVersion, ...]:
    """The versions among the rows; those that name their product first."""
    versions = [row for row in rows if row["what"] == "version"]
    told = [AnsweredVersion(str(row["value"]), row.get("product"), str(row["source"])) for row in versions]
    return tuple(sorted(told, key=lambda answer: answer.product is None))


def _changed_answers(
    first: Sequence[AnsweredVersion], later: Sequence[tuple[str, Sequence[AnsweredVersion]]]
) -> list[str]:
    """One sentence for each source whose version became another; a source that fell silent is none."""
    found: dict[str, str] = {}
    was = {answer.source: answer.version for answer in first}
    for mark, answers in later:
        for answer in answers:
            before = was.get(answer.source, answer.version)
            if answer.version != before:
                text = f"{before}, then {answer.version} ({answer.source}, seen at {mark})"
                found.setdefault(answer.source, text)
    return list(found.values())


def _changed_program(digest: str | None, later: Sequence[tuple[str, str | None]]) -> list[str]:
    """The process runs another program than before (execve keeps pid and start time)."""
    for mark, now in later:
        if digest is not None and now is not None and now != digest:
            first, then = digest[:SHOWN_DIGITS], now[:SHOWN_DIGITS]
            return [f"program sha256 {first}…, then {then}… ({_EXE}, seen at {mark})"]
    return []


def _unreadable(subject: Mapping[str, Any] | None) -> str | None:
    """Why exe or its hash could not be read."""
    rows = [] if subject is None else subject.get("visibility") or []
    return next((row["why"] for row in rows if row["source"] in ("exe", "exe_sha256") and row["why"]), None)


def _rows(identity: Mapping[str, Any], asked: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Everything seen, each with its source."""
    found = [
        {"what": what, "value": str(identity[name]), "source": source}
        for name, what, source in IDENTITY
        if identity.get(name) is not None
    ]
    if found and found[0]["what"] == IDENTITY[0][1]:
        found[0] |= _remark(found[0]["value"])
    for row in asked:
        what = "version answered" if row["what"] == "version" else str(row["what"])
        product = f"{row['product']} " if row.get("product") else ""
        found.append({"what": what, "value": f"{product}{row['value']}", "source": str(row["source"])})
    return found


def _remark(exe: str) -> dict[str, str]:
    """What is to be known of the program beside its path."""
    remarks = []
    if (why := not_the_build(exe)) is not None:
        remarks.append(f"{why}: its file does not identify the build")
    if exe.endswith(" (deleted)"):
        remarks.append("deleted or replaced on disk since it was started; what is said here is of the running one")
    return {"remark": "; ".join(remarks)} if remarks else {}


# identity's key, what it is called, where it was read
IDENTITY = (
    ("exe", "program", _EXE),
    ("exe_sha256", "program sha256", _EXE),
    ("build_id", "build id", f"{_EXE}, .note.gnu.build-id"),
    ("go_build_id", "Go build id", f"{_EXE}, .note.go.buildid"),
    ("arch", "architecture", f"{_EXE}, ELF header"),
    ("container_id", "container id", "/proc/PID/cgroup"),
)

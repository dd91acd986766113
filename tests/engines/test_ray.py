"""The Ray engine: the serial bits on one node and on two, whatever is killed; tokens; batches."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import heterophony as hp
from helpers.commands import call, refused
from helpers.crash import recorded
from helpers.support import CALM, calm, digits, identical, net_with_batch_norm, played, untimed
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.algorithms.fedper import FedPer
from heterophony.cli import app
from heterophony.config.nets import list_mixed_algorithms
from heterophony.config.reading import read_config
from heterophony.core import files as secret_file
from heterophony.core.accelerator import ON_CPU
from heterophony.core.errors import ConfigError, DivergedError, EngineError, HeterophonyError
from heterophony.engines import base as batching
from heterophony.engines.child_processes import CONTEXT, start_fork_server
from heterophony.engines.ray import remote_job
from heterophony.engines.ray import remote_job as temp_folders
from heterophony.jobs.client_store import FolderClientStore
from heterophony.jobs.plan import Job

ALGORITHMS = sorted(ALGORITHM_CLASSES)
PATIENCE = 120  # seconds until a test fails
pytestmark = pytest.mark.xdist_group("ray")  # with --dist loadgroup: one cluster for all


@pytest.fixture(autouse=True)
def installed() -> None:
    if find_spec("ray") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("Ray is not installed")
        pytest.skip("Ray is not installed")


@dataclass
class TwoNodes:
    """A cluster on this machine: a head with one core, and at times a second node with one core."""

    cluster: object
    address: str
    token: str
    second: object = None

    @property
    def environment(self) -> dict[str, str]:
        return {"RAY_AUTH_TOKEN": self.token}

    def grow(self) -> None:
        if self.second is None:
            self.second = self.cluster.add_node(num_cpus=1)
            self.cluster.wait_for_nodes(PATIENCE)

    def shrink(self) -> None:
        if self.second is not None:
            self.cluster.remove_node(self.second, allow_graceful=False)
            self.second = None
            self.cluster.wait_for_nodes(PATIENCE)

    def workers(self, node) -> list[psutil.Process]:
        """The processes of a node that run jobs."""
        (raylet,) = node.all_processes["raylet"]
        return [p for p in children(psutil.Process(raylet.process.pid)) if p.name() in WORKERS]


WORKERS = ("ray::IDLE", "ray::run_batch")
DAEMONS = ("raylet", "gcs_server")
AGENTS = ("ray::DashboardA", "ray::RuntimeEnv")  # end only after a minute of retries


def children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    """A cluster that this process has joined, as a user of an existing one does."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    token = secrets.token_hex(32)
    quick = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "4"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RAY_AUTH_TOKEN": token, **quick}.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        from heterophony.engines.ray.engine import connect_to_cluster, reload_ray_settings

        reload_ray_settings()
        cluster = Cluster()
        try:
            cluster.add_node(num_cpus=1, include_dashboard=False)
            with connect_to_cluster(None, hp.Cluster(address=cluster.address)):
                daemons = [p for p in children(psutil.Process()) if p.name() in DAEMONS]
                yield TwoNodes(cluster, cluster.address, token)
        finally:
            cluster.shutdown()
    _, alive = psutil.wait_procs(daemons, PATIENCE)
    assert alive == []


def on_ray(algorithm: str | hp.Algorithm, **how) -> hp.Result:
    return played(algorithm, engine="ray", **how)


# The same bits ------------------------------------------------------------------------------


KINDS = ("fedavg", "fedreg", "fedamp", "scaffold")  # plain, personal, own models, server's memory


def test_every_algorithm_has_the_serial_bits_on_two_nodes_and_one_of_each_kind_on_one(nodes):
    how = {**CALM, "rounds": 2, "federation": digits(3, 120), "participation": 0.7}
    alone = {n: untimed(played(n, **how)) for n in ALGORITHMS}
    nodes.shrink()
    assert [n for n in KINDS if untimed(on_ray(n, **how)) != alone[n]] == []
    nodes.grow()
    assert [n for n in ALGORITHMS if untimed(on_ray(n, **how)) != alone[n]] == []
    assert nodes.workers(nodes.second) != []


def test_clients_selected_twice_or_late_or_after_training_have_the_serial_bits(nodes):
    how = {"participation": hp.Skewed(count=5, gamma=0.5), "rounds": 3}
    how |= {"faults": hp.Faults(dropout=0.3)}
    federation = hp.federate("digits", clients=6, partition=hp.IID(), seed=1).set_aside_new_clients(
        0.3, 1
    )
    runs = [played("fedper", federation, engine=e, **how) for e in ("serial", "ray")]
    assert untimed(runs[0]) == untimed(runs[1])


def test_clients_with_different_nets_have_the_serial_bits(nodes):
    for name in list_mixed_algorithms():
        nets = ["mlp", "mlp@0.5"] if name == "heterofl" else ["mlp", "digitsnet"]
        how = {"model": nets, "rounds": 2}
        assert untimed(on_ray(name, **how)) == untimed(played(name, **how)), name


def test_protections_have_the_serial_bits(nodes, monkeypatch):
    """Noise of the devices, and what compression remembers in the memories that travel."""
    monkeypatch.setattr(secret_file, "draw_secret", lambda: bytes(32))
    chain = [hp.ClientDP(clip=0.5, noise=1.0, where="device"), hp.TopK(ratio=0.1)]
    how = {"protection": chain, "rounds": 2, "participation": 1.0}
    assert untimed(on_ray("fedreg", **how)) == untimed(played("fedreg", **how))
    nothing = [hp.ClientDP(clip=float("inf"), noise=0.0), hp.TopK(ratio=1.0), hp.Krum(f=0)]
    assert identical(on_ray("fedreg", protection=nothing, **CALM), calm("fedreg"))


def test_a_model_defined_in_the_script_is_sent_to_the_nodes(nodes):
    def net() -> hp.Net:
        from torch import nn

        return hp.split(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)))

    assert identical(played("fedper", model=net), on_ray("fedper", model=net))
    given = net()
    given.base.requires_grad_(False)  # the values of this module, which nobody sends
    assert identical(played("ditto", model=given), on_ray("ditto", model=given))


def test_an_algorithm_outside_the_package_has_the_serial_bits(nodes, tmp_path, monkeypatch):
    (tmp_path / "beside_ray.py").write_text(
        "import heterophony as hp\n\n"
        "class Halfway(hp.Algorithm):\n"
        "    def merge(self, server, replies):\n"
        "        return server.update(0.5 * (server.model + hp.mean(replies)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    name = "beside_ray:Halfway"
    assert identical(played(name), on_ray(name))
    assert on_ray(name).summary.algorithm == name


def test_a_trusted_entry_of_a_leaderboard_brings_its_algorithm_to_the_nodes(
    nodes, tmp_path, monkeypatch
):
    """No node has the entry's folder on its path: the text of the file travels."""
    own = tmp_path / "entry_on_ray.py"
    own.write_text(
        "import heterophony as hp\n\n"
        "class Own(hp.Algorithm):\n"
        "    def local(self, client):\n"
        "        client.fit()\n"
        "        return 2.0 * client.shared()\n"
    )
    small = ("rounds=2", "data.clients=3", "local.steps=2", "model.name=mlp", "engine.name=serial")
    words = [word for setting in small for word in ("-c", setting)]
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        call("run", "entry_on_ray:Own", *words, "--out", tmp_path / "run")
    assert (
        call("leaderboard", "add", tmp_path / "b", tmp_path / "run", "--code", own).exit_code == 0
    )
    asked = ("leaderboard", "check", tmp_path / "b", "-c", "engine.name=ray", "--json")
    assert "--trust" in refused(3, *asked)
    done = call(*asked, "--trust")
    assert (done.exit_code, [c["equal"] for c in json.loads(done.stdout)]) == (0, [True])


def test_workers_do_not_search_the_drivers_folder_before_installed_packages(nodes):
    """Ray itself puts it first: any file there could pose as a package."""
    import ray

    path = ray.get(ray.remote(lambda: sys.path).remote())
    here, installed = str(Path.cwd()), Path(np.__file__).parents[1]
    assert here not in path[: path.index(str(installed))]


def test_an_audit_has_the_serial_bits(nodes, tmp_path):
    settings = ["data.name=digits", "data.clients=3", "model.name=digitsnet", "training.steps=2"]
    words = [w for s in settings for w in ("-c", s)]
    few = ["--rounds", "1", "--clients", "1", "--images", "1", "--iterations", "2"]
    found = {}
    for engine in ("serial", "ray"):
        asked = ["audit", "fedper", *few, *words, "-c", f"engine.name={engine}"]
        done = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / engine), "--json"])
        assert done.exit_code == 0, done.output
        found[engine] = json.loads(done.stdout)
    assert len(found["serial"]["attacks"]) == 3  # attackers: fresh, initial, known
    assert found["ray"] == found["serial"]


def test_several_runs_share_the_cluster_and_each_has_its_bits(nodes, tmp_path):
    settings = ["rounds=2", "data.clients=4", "training.epochs=1", "model.name=mlp"]
    words = [w for s in settings for w in ("-c", s)]
    found = {}
    for engine in ("serial", "ray"):
        asked = ["compare", "fedavg", "fedper", *words, "-c", f"engine.name={engine}"]
        done = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / engine), "--json"])
        assert done.exit_code == 0, done.stderr
        files = (tmp_path / engine).glob("*/result.json")
        found[engine] = {f.parent.name: json.loads(f.read_text())["model_sha256"] for f in files}
    assert found["ray"] == found["serial"]
    assert len(found["ray"]) == 2


def test_the_nodes_remove_what_they_hold_of_a_run(nodes, monkeypatch):
    import ray

    from heterophony.engines.ray import engine

    monkeypatch.setattr(engine, "TIMEOUT_SECONDS", PATIENCE)
    ours = temp_folders.open_temp_folder("abandoned")
    engine.clean_nodes("abandoned", [n["NodeID"] for n in ray.nodes() if n["Alive"]])
    assert not ours.path.exists()
    ours.close()


# Errors -------------------------------------------------------------------------------------


def test_an_error_in_a_task_has_the_text_of_the_serial_engine(nodes):
    how = {
        "training": hp.Training(epochs=1, batch=16, lr=1e30),
        "participation": hp.Uniform(count=1),
    }
    said = []
    for engine in ("serial", "ray"):
        with pytest.raises(DivergedError) as caught:
            played("fedavg", engine=engine, **how)
        said.append(str(caught.value))
    assert said[0] == said[1]


@dataclass(frozen=True)
class Broken(FedPer):
    """An algorithm with a mistake."""

    def local(self, client):
        raise KeyError("mistake")


def test_a_mistake_in_an_algorithm_comes_back_with_its_trace(nodes):
    with pytest.raises(EngineError, match=r"round 0: KeyError\('mistake'\)\nTraceback"):
        on_ray(Broken())


def test_a_model_that_cannot_be_pickled_is_reported(nodes):
    import threading

    lock = threading.Lock()

    def net() -> hp.Net:
        assert lock
        return net_with_batch_norm()

    with pytest.raises(EngineError, match=r"the Ray engine cannot send 'lock', which .*net uses,"):
        on_ray("fedavg", model=net)


def test_a_job_that_fits_on_no_node_is_reported_at_once(nodes):
    with pytest.raises(
        EngineError, match=r"no node .* for a job \(engine.cpus = 1 and engine.gpus = 2\); lower"
    ):
        on_ray("fedavg", cluster=hp.Cluster(gpus=2))


# Kill -9 ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fatal(FedPer):
    """Kills its worker, or its whole node, in the middle of a job, once."""

    marker: str = ""
    what: str = "worker"

    def local(self, client):
        raylet = psutil.Process(os.getppid()) if "raylet" in parent_name() else None
        if raylet and client.t == 1 and not self.due(raylet):
            # the other node, whose workers start later, gets a job while this one is busy
            wait_until(Path(self.marker).exists)
        elif raylet and client.t == 1 and first(Path(self.marker)):
            if self.what == "node":
                raylet.suspend()  # so that it replaces nobody
                for p in raylet.children(recursive=True):
                    if p.pid != os.getpid():
                        p.kill()
                raylet.kill()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().local(client)

    def due(self, raylet: psutil.Process) -> bool:
        return self.what == "worker" or str(raylet.pid) == Path(f"{self.marker}.node").read_text()


def wait_until(happened: Callable[[], bool]) -> None:
    """Wait for something that another process does; fail if it never happens."""
    for _ in range(100 * PATIENCE):
        if happened():
            return
        time.sleep(0.01)
    raise TimeoutError


def parent_name() -> str:
    return psutil.Process(os.getppid()).name()


def first(marker: Path) -> bool:
    """Is this the first process that gets here?"""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def test_a_killed_worker_costs_only_time(nodes, tmp_path):
    stormy = on_ray(Fatal(str(tmp_path / "done")), participation=1.0, **CALM)
    assert (tmp_path / "done").exists()
    assert identical(stormy, played(Fatal(), participation=1.0, **CALM))


def drive(out: Path, environment: dict[str, str], address: str | None) -> None:
    os.environ.update(environment)
    there = hp.Cluster(address=address)
    played("fedper", engine="ray", workers=2, cluster=there, out=out, resume=True, **CALM)


def killed_at(at: int, out: Path, *how: object) -> tuple[dict[psutil.Process, str], set[str]]:
    """Start a driver and kill -9 it after so many events; return its processes and addresses."""
    start_fork_server()
    driver = CONTEXT.Process(target=drive, args=(out, *how))
    driver.start()
    while driver.is_alive() and recorded(out / "events.jsonl") < at:
        driver.join(0.01)
    started = {p: p.name() for p in children(psutil.Process(driver.pid))}
    reachable = {at for p in started for at in listening(p)}
    driver.kill()
    driver.join()
    return started, reachable


def listening(process: psutil.Process) -> set[str]:
    """The addresses at which a process listens."""
    try:
        found = process.net_connections("inet")
    except psutil.NoSuchProcess:
        return set()
    return {c.laddr.ip.removeprefix("::ffff:") for c in found if c.status == psutil.CONN_LISTEN}


def test_a_killed_driver_resumes_to_the_same_bits(nodes, tmp_path):
    killed_at(3, tmp_path / "run", nodes.environment, nodes.address)
    assert identical(on_ray("fedper", out=tmp_path / "run", resume=True, **CALM), calm("fedper"))


def test_a_node_killed_in_the_middle_of_a_round_costs_only_time(nodes, tmp_path):
    nodes.grow()
    (raylet,) = nodes.second.all_processes["raylet"]
    (tmp_path / "done.node").write_text(str(raylet.process.pid))
    how = {"participation": 1.0, **CALM}
    stormy = on_ray(Fatal(str(tmp_path / "done"), "node"), **how)
    assert (tmp_path / "done").exists()
    assert raylet.process.wait(PATIENCE) == -signal.SIGKILL
    nodes.shrink()
    assert identical(stormy, played(Fatal(what="node"), **how))


def test_a_local_ray_ends_with_a_killed_driver(tmp_path):
    """Without an address, the engine starts a cluster on this machine for the run."""
    out = tmp_path / "run"
    started, reachable = killed_at(2, out, {}, None)
    assert {*DAEMONS} < {*started.values()}
    assert reachable == {"127.0.0.1"}
    awaited = [p for p, name in started.items() if not name.startswith(AGENTS)]
    _, alive = psutil.wait_procs(awaited, PATIENCE)
    assert alive == []
    assert identical(played("fedper", out=out, resume=True, **CALM), calm("fedper"))


def list_first_workers(out: Path) -> None:
    from heterophony.engines.ray.engine import connect_to_cluster

    with connect_to_cluster(2, hp.Cluster()):
        out.write_text(repr([p.name() for p in children(psutil.Process()) if p.name() in WORKERS]))


def test_the_start_of_a_local_ray_waits_for_no_worker(tmp_path):
    """It would wait for ever for one that was killed before Ray knew it."""
    start_fork_server()
    driver = CONTEXT.Process(target=list_first_workers, args=(tmp_path / "workers",))
    driver.start()
    driver.join()
    assert (tmp_path / "workers").read_text() == "[]"


# Who may join -------------------------------------------------------------------------------


def join(environment: dict[str, str], address: str, said: Path, noise: Path) -> None:
    os.environ.update(environment)
    os.dup2(os.open(noise, os.O_WRONLY | os.O_CREAT), 2)
    try:
        played("fedavg", engine="ray", cluster=hp.Cluster(address=address))
    except HeterophonyError as error:
        said.write_text(f"{type(error).__name__}: {error}")


def test_a_wrong_token_is_refused_in_one_line(nodes, tmp_path):
    start_fork_server()
    said, noise = tmp_path / "said", tmp_path / "noise"
    wrong = {"RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_NUM_REDIS_GET_RETRIES": "1"}
    process = CONTEXT.Process(target=join, args=(wrong, nodes.address, said, noise))
    process.start()
    process.join()
    assert said.read_text() == (
        f"EngineError: cannot use {nodes.address}: it does not exist, or RAY_AUTH_TOKEN is not its"
        " token"
    )
    assert noise.read_text() == ""


def test_without_a_token_no_cluster_is_joined(monkeypatch, tmp_path):
    from heterophony.engines.ray import engine

    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with (
        pytest.raises(ConfigError, match="joining a cluster needs its token; put"),
        engine.require_token(hp.Cluster(address="auto")),
    ):
        pass


def test_a_cluster_that_is_not_there_is_reported_at_once():
    from heterophony.engines.ray import engine

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(EngineError, match=rf"127.0.0.1:{port}: nothing answers there"):
        engine.check_reachable(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["foo", "ray://head:10001", "head:", ":1"])
def test_an_address_is_that_of_a_head(address):
    with pytest.raises(ConfigError, match=r"address: must be auto, or a cluster.s host:port"):
        hp.Cluster(address=address)


def test_the_switch_that_mixes_clients_is_refused(monkeypatch):
    from heterophony.engines.ray import engine

    monkeypatch.setenv("RAY_ENABLE_ZERO_COPY_TORCH_TENSORS", "1")
    with pytest.raises(ConfigError, match="unset it"), engine.require_token(hp.Cluster()):
        pass


def test_without_ray_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"pip install 'heterophony\[ray\]'"):
        played("fedavg", engine="ray")
    for words in (["run"], ["compare", "fedavg"], ["reproduce", "fedreg-table2-sota"]):
        done = CliRunner().invoke(app, [*words, "-c", "engine.name=ray"])
        assert done.exit_code == 3
        (line,) = done.stderr.splitlines()
        assert line.endswith("needs Ray; install it with pip install 'heterophony[ray]'")
    assert list(tmp_path.iterdir()) == []


def test_what_only_a_cluster_has_needs_one_and_a_run_can_leave_it():
    with pytest.raises(ConfigError, match=r"engine\.address: only with engine\.name = 'ray'"):
        read_config(None, ["engine.address=auto"])
    with pytest.raises(ConfigError, match=r"engine\.gpus: only with engine\.name = 'ray'"):
        played("fedavg", cluster=hp.Cluster(gpus=1))
    there = ["engine.name=ray", "engine.address=auto", "engine.cpus=2"]
    assert 'address = "auto"\ncpus = 2' in read_config(None, there).to_toml()
    assert (
        read_config(None, [*there, "engine.name=pool"]).to_toml() == read_config(None, []).to_toml()
    )


def test_resume_changes_where_it_runs_and_nothing_else(tmp_path):
    done = CliRunner().invoke(app, ["resume", str(tmp_path), "-c", "seed=1"])
    assert done.exit_code == 3
    assert "only engine settings can change" in done.stderr


# Parts --------------------------------------------------------------------------------------


costs = st.lists(st.integers(0, 500), max_size=80)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(costs, costs, st.integers(1, 8))
def test_batches_hold_every_job_once_and_none_more_than_its_share(train, evaluate, workers):
    kinds = {"train": train, "evaluate": evaluate}
    jobs = [
        Job(kind=k, t=0, client="c", tensors=hp.Tensors(), cost=n)
        for k, costs in kinds.items()
        for n in costs
    ]
    made = batching.batch_jobs(jobs, workers)
    assert sorted(map(id, (j for b in made for j in b))) == sorted(map(id, jobs))
    assert [b[0].kind for b in made] == sorted((b[0].kind for b in made), reverse=True)
    for kind in ("train", "evaluate"):
        whole = sum(j.cost for j in jobs if j.kind == kind)
        for b in (b for b in made if b[0].kind == kind):
            assert {j.kind for j in b} == {kind}
            assert len(b) <= batching.MAX_JOBS
            assert (
                len(b) == 1
                or sum(j.cost for j in b) * workers * batching.BATCHES_PER_WORKER <= whole
            )


def test_jobs_of_another_kind_are_batches_of_one():
    made = batching.batch_jobs(
        [Job(kind="other", t=0, client=str(i), tensors=hp.Tensors(), cost=1) for i in range(99)], 1
    )
    assert [len(b) for b in made] == [1] * 99


def test_large_models_are_batches_of_one():
    large = hp.Tensors({"w": __import__("torch").zeros(batching.MAX_BYTES // 4)})
    made = batching.batch_jobs(
        [Job(kind="train", t=0, client=str(i), tensors=large, cost=1) for i in range(99)], 1
    )
    assert [len(b) for b in made] == [1] * 99


@pytest.mark.parametrize("content", [{}, {"net": hp.Tensors({"w": __import__("torch").ones(3)})}])
def test_a_memory_sent_with_a_job_has_the_digest_of_one_on_disk(tmp_path, content):
    near = FolderClientStore(tmp_path / "near", tmp_path / "scratch")
    near.save_memory("a", 0, {"net": hp.Tensors()})
    far = remote_job.CarriedClientStore(near.read_blob("a", before=2), tmp_path / "scratch")
    for store in (near, far):
        store.save_memory("a", 2, content)
    assert near.digest_memory("a", before=2) == far.digest_memory("a", before=2)
    assert near.digest_memory("a", before=3) == far.digest_memory("a", before=3)
    copy = FolderClientStore(tmp_path / "copy", tmp_path / "scratch")
    copy.write_blob("a", 2, far.saved_memory)
    assert copy.digest_memory("a", before=3) == near.digest_memory("a", before=3)


def hold(folder: Path, claimed: object) -> None:
    temp_folders.find_temp_root = lambda: folder
    temp_folders.open_temp_folder("theirs")
    claimed.set()
    signal.pause()


@pytest.mark.parametrize("length", [5, 12, 16, 20, 30, 60])
def test_the_sockets_of_ray_fit_into_the_path_of_its_folder(monkeypatch, length):
    monkeypatch.setattr(temp_folders.tempfile, "tempdir", "/" + "t" * (length - 1))
    session = "session_2026-11-18_20-57-18_826646_4194304/sockets/plasma_store"
    path = temp_folders.find_temp_root() / f"ray-{secrets.token_hex(4)}" / session
    assert len(str(path)) <= 107
    if length < 12:
        assert path.is_relative_to(temp_folders.tempfile.gettempdir())


def test_what_a_killed_process_leaves_is_removed_by_the_next(monkeypatch, tmp_path):
    monkeypatch.setattr(temp_folders, "find_temp_root", lambda: tmp_path / "root")
    start_fork_server()
    claimed = CONTEXT.Event()
    other = CONTEXT.Process(target=hold, args=(tmp_path / "root", claimed))
    other.start()
    claimed.wait()

    def names() -> list[str]:
        return sorted(p.name for p in (tmp_path / "root").iterdir())

    ours = temp_folders.open_temp_folder("ours")
    assert names() == ["ours", "ours.lock", "theirs", "theirs.lock"]
    other.kill()
    other.join()
    ours.delete()
    assert names() == ["theirs", "theirs.lock"]
    temp_folders.open_temp_folder("next").delete()
    assert names() == []


def test_data_are_unpacked_once_and_opened_by_all(tmp_path, monkeypatch):
    monkeypatch.setattr(temp_folders, "find_temp_root", lambda: tmp_path)
    federation = hp.federate("digits", clients=3, seed=0)
    bundle = remote_job.RunBundle(
        *(
            remote_job.get_versions(),
            (),
            b"",
            federation.format_header(),
            federation.collect_arrays(),
        ),
        remote_job.WorkerPlace.describe(ON_CPU),
    )
    for _ in range(2):
        remote_job.write_data_once(tmp_path / "data", bundle, lambda array: array)
    opened = hp.Federation.open(tmp_path / "data")
    assert opened.sha256 == federation.sha256
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


def test_another_version_on_a_node_is_refused(tmp_path):
    bundle = remote_job.RunBundle(
        ("0.0.1", "1.0"), (), b"", "", {}, remote_job.WorkerPlace.describe(ON_CPU)
    )
    with pytest.raises(EngineError, match=r"heterophony 0\.0\.1 and torch 1\.0, but a node"):
        remote_job.OpenRun("run", bundle, lambda x: x, bytes)
    assert np.array_equal(remote_job.as_array(b"ab"), [97, 98])

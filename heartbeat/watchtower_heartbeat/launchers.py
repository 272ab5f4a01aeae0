"""Finds the rank of this process: in the environment, where each launcher has its own variables, or
in JAX.
"""

from __future__ import annotations

from watchtower_heartbeat.layout import UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

# (rank, local rank, world size). The first one with a rank wins. Launchers of the process come
# before launchers of the machine: torchrun and mpirun run inside Slurm jobs.
LAUNCHERS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),  # torchrun, Accelerate, DeepSpeed
    ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE"),  # MVAPICH
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),  # MPICH, Intel MPI, Hydra
    ("PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_SIZE"),  # HPE Cray
    ("FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_SIZE"),
    ("JAX_PROCESS_ID", "JAX_LOCAL_PROCESS_ID", "JAX_NUM_PROCESSES"),  # by convention of programs
    ("PMIX_RANK", "", ""),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),  # srun
)

LIGHTNING = ("NODE_RANK", "LOCAL_RANK", "WORLD_SIZE")
"""Lightning's own launcher has no variable for the rank."""

IDENTITY_VARIABLES = (*(name for names in LAUNCHERS for name in names), *LIGHTNING)


def read_identity(environment: Mapping[str, str]) -> dict[str, int]:
    """Return `rank`, `local_rank` and `world_size`; -1 for each that the environment lacks.

    All three come from one launcher, so that the world size belongs to the rank.
    """
    for names in LAUNCHERS:
        rank, local_rank, world_size = (_read_number(environment, name) for name in names)
        if rank != UNKNOWN:
            return {"rank": rank, "local_rank": local_rank, "world_size": world_size}
    node_rank, local_rank, world_size = (_read_number(environment, name) for name in LIGHTNING)
    if node_rank == 0 and UNKNOWN not in (local_rank, world_size):
        # On the first node the ranks begin with 0. Elsewhere the ranks per node are not known.
        return {"rank": local_rank, "local_rank": local_rank, "world_size": world_size}
    return {"rank": UNKNOWN, "local_rank": UNKNOWN, "world_size": UNKNOWN}


def read_jax(modules: Mapping[str, ModuleType]) -> dict[str, int]:
    """Return `rank` and `world_size` of a process that jax.distributed.initialize() has connected.

    Empty without one. Nothing is imported, and nothing waits for another process.
    """
    state = getattr(modules.get("jax._src.distributed"), "global_state", None)
    if state is None or getattr(state, "client", None) is None:
        return {}
    return {"rank": int(state.process_id), "world_size": int(state.num_processes)}


def _read_number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    # isdigit() alone also accepts digits of other scripts. Nine digits are enough for a rank.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else UNKNOWN

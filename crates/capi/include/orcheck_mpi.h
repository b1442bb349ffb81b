/**
 * @file orcheck_mpi.h
 * Orcheck for MPI programs: header-only, compiled by the program's own mpicc or mpicxx, so that
 * liborcheck itself contains no MPI and works with every implementation.
 *
 * orc_mpi_open() duplicates the communicator: Orcheck's messages cannot meet the program's. Any
 * intra-communicator will do, several sessions in one program too. MPI is called only inside
 * [collective] functions, on the thread that calls them: MPI_THREAD_FUNNELED suffices when that is
 * the main thread. The duplicate is freed by orc_close(), which therefore comes before
 * MPI_Finalize(); orc_abandon() frees memory only, and leaves the duplicate to MPI.
 *
 * C99 or C++11, MPI 2.2 or newer.
 */
#ifndef ORCHECK_MPI_H
#define ORCHECK_MPI_H

#include "orcheck.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

/**
 * Ends a program of many ranks as a whole, after what it printed has reached the launcher: in a few runs of a
 * hundred, MPICH's launcher drops output that arrives together with the abort. Takes 0.1 s.
 */
static inline void orc_mpi_end(void) {
  int initialized = 0, finalized = 0;
  double until;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  fflush(stdout);
  if (!initialized || finalized) abort();
  until = MPI_Wtime() + 0.1;
  while (MPI_Wtime() < until) continue;
  MPI_Abort(MPI_COMM_WORLD, 1);
  abort();
}

#ifdef ORC_TRY_END_IS_ABORT
#undef ORC_TRY_END
#undef ORC_TRY_END_IS_ABORT
#define ORC_TRY_END() orc_mpi_end()
#endif

/** Largest piece that is given to one MPI call, in bytes: counts are ints. */
#ifndef ORC_MPI_PIECE_BYTES
#define ORC_MPI_PIECE_BYTES ((size_t)1 << 28)
#endif

/* What a session keeps of its communicator. */
typedef struct {
  MPI_Comm comm;
  int rank;
} orc_mpi_ctx;

static inline int orc_mpi_bcast(void *ctx, void *buf, size_t len_bytes, int root) {
  orc_mpi_ctx *c = (orc_mpi_ctx *)ctx;
  size_t at = 0;
  while (at < len_bytes) {
    size_t piece = len_bytes - at;
    if (piece > ORC_MPI_PIECE_BYTES) piece = ORC_MPI_PIECE_BYTES;
    int rc = MPI_Bcast((char *)buf + at, (int)piece, MPI_BYTE, root, c->comm);
    if (rc != MPI_SUCCESS) return rc;
    at += piece;
  }
  return 0;
}

static inline int orc_mpi_gather(void *ctx, const void *mine, size_t len_bytes, void *out,
                                 int root) {
  orc_mpi_ctx *c = (orc_mpi_ctx *)ctx;
  size_t at = 0;
  while (at < len_bytes) {
    size_t piece = len_bytes - at;
    if (piece > ORC_MPI_PIECE_BYTES) piece = ORC_MPI_PIECE_BYTES;
    /* One element is a piece; elements of neighbouring ranks are len_bytes apart at the root. */
    MPI_Datatype bytes = MPI_DATATYPE_NULL, spaced = MPI_DATATYPE_NULL;
    int rc = MPI_Type_contiguous((int)piece, MPI_BYTE, &bytes);
    if (rc == MPI_SUCCESS) rc = MPI_Type_create_resized(bytes, 0, (MPI_Aint)len_bytes, &spaced);
    if (rc == MPI_SUCCESS) rc = MPI_Type_commit(&spaced);
    if (rc == MPI_SUCCESS)
      /* The cast drops const for implementations of MPI 2.2. */
      rc = MPI_Gather((char *)(size_t)mine + at, (int)piece, MPI_BYTE,
                      c->rank == root ? (char *)out + at : NULL, 1, spaced, root, c->comm);
    if (spaced != MPI_DATATYPE_NULL) MPI_Type_free(&spaced);
    if (bytes != MPI_DATATYPE_NULL) MPI_Type_free(&bytes);
    if (rc != MPI_SUCCESS) return rc;
    at += piece;
  }
  return 0;
}

static inline int orc_mpi_allreduce_min(void *ctx, int64_t *v, size_t n) {
  orc_mpi_ctx *c = (orc_mpi_ctx *)ctx;
  size_t at = 0;
  while (at < n) {
    size_t piece = n - at;
    if (piece > ORC_MPI_PIECE_BYTES) piece = ORC_MPI_PIECE_BYTES;
    int rc = MPI_Allreduce(MPI_IN_PLACE, v + at, (int)piece, MPI_INT64_T, MPI_MIN, c->comm);
    if (rc != MPI_SUCCESS) return rc;
    at += piece;
  }
  return 0;
}

static inline void orc_mpi_release(void *ctx, int orderly) {
  orc_mpi_ctx *c = (orc_mpi_ctx *)ctx;
  int finalized = 0;
  MPI_Finalized(&finalized);
  /* MPI_Comm_free is collective: only where all ranks are known to be. */
  if (orderly && !finalized) MPI_Comm_free(&c->comm);
  free(c);
}

static inline orc_status orc_mpi_failed(const char *call, int rc) {
  char what[MPI_MAX_ERROR_STRING + 1] = "", text[MPI_MAX_ERROR_STRING + 128];
  int len = 0;
  MPI_Error_string(rc, what, &len);
  snprintf(text, sizeof text, "orc_mpi_open: %s failed: %s", call, what);
  return orc_refuse(ORC_UNAVAILABLE, text);
}

/**
 * Fills a collective from a communicator: duplicates it, and sets the duplicate to return errors
 * instead of aborting. **[collective]** over comm. For orc_mpi_open(), and for programs that want to
 * change a field before orc_open().
 *
 * When the open that follows fails, the caller gives the context back with
 * collective->release(collective->ctx, 0).
 */
static inline orc_status orc_mpi_collective(MPI_Comm comm, orc_collective *collective) {
  int initialized = 0, finalized = 0, inter = 0, rc;
  orc_mpi_ctx *c;
  if (!collective)
    return orc_refuse(ORC_INVALID, "orc_mpi_collective: argument collective is NULL");
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (!initialized || finalized)
    return orc_refuse(ORC_INVALID,
                      "orc_mpi_open: MPI is not initialized, or already finalized. Next: call it "
                      "between MPI_Init and MPI_Finalize");
  if (comm == MPI_COMM_NULL)
    return orc_refuse(ORC_INVALID,
                      "orc_mpi_open: the communicator is MPI_COMM_NULL. Next: call it only on the "
                      "ranks that belong to the communicator");
  if ((rc = MPI_Comm_test_inter(comm, &inter)) != MPI_SUCCESS)
    return orc_mpi_failed("MPI_Comm_test_inter", rc);
  if (inter)
    return orc_refuse(ORC_INVALID,
                      "orc_mpi_open: this is an inter-communicator, expected an intra-communicator. "
                      "Next: MPI_Intercomm_merge, or open one session on either side");
  c = (orc_mpi_ctx *)calloc(1, sizeof *c);
  if (!c) return orc_refuse(ORC_UNAVAILABLE, "orc_mpi_open: out of memory");
  if ((rc = MPI_Comm_dup(comm, &c->comm)) != MPI_SUCCESS) {
    free(c);
    return orc_mpi_failed("MPI_Comm_dup", rc);
  }
  MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN);
  collective->struct_size = sizeof *collective;
  collective->ctx = c;
  MPI_Comm_rank(c->comm, &c->rank);
  MPI_Comm_size(c->comm, &collective->size);
  collective->rank = c->rank;
  collective->bcast = orc_mpi_bcast;
  collective->gather = orc_mpi_gather;
  collective->allreduce_min = orc_mpi_allreduce_min;
  collective->release = orc_mpi_release;
  return ORC_OK;
}

/**
 * Opens a session for the ranks of a communicator. **[collective]** over comm.
 * See orc_open_v() for job, options and errors.
 *
 * @code
 * MPI_Init(&argc, &argv);
 * orc_session *s;
 * ORC_TRY(orc_mpi_open(&s, MPI_COMM_WORLD, "cavity", "every_s = 600"));
 * ...
 * ORC_TRY(orc_close(s, 300));
 * MPI_Finalize();
 * @endcode
 */
static inline orc_status orc_mpi_open(orc_session **session, MPI_Comm comm, const char *job,
                                      const char *options) {
  orc_collective collective;
  orc_status status;
  if (!session) return orc_refuse(ORC_INVALID, "orc_mpi_open: argument session is NULL");
  *session = NULL;
  status = orc_mpi_collective(comm, &collective);
  if (status != ORC_OK) return status;
  status = orc_open(session, job, &collective, options);
  /* Other ranks may have opened or be on their way out: no collective MPI_Comm_free here. */
  if (status != ORC_OK) orc_mpi_release(collective.ctx, 0);
  return status;
}

#endif /* ORCHECK_MPI_H */

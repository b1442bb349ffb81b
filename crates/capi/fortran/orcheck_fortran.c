/**
 * @file orcheck_fortran.c
 * The part of the Fortran interface that must be C: reading Fortran's array descriptors, and turning
 * a Fortran communicator into a C one. Compiled by the user, beside orcheck.f90:
 *
 *   mpif90 $(pkg-config --variable=fortran orcheck) solver.f90 $(pkg-config --cflags --libs orcheck) -o solver
 *
 * or, for programs without MPI, with gfortran -DORC_NO_MPI. The ISO_Fortran_binding.h must be that of the
 * Fortran compiler in use: if that compiler does not compile C, compile this file with the C compiler that goes with it.
 */
#ifdef ORC_NO_MPI
#include "orcheck.h"
#else
#include "orcheck_mpi.h"
#endif

#include <ISO_Fortran_binding.h>
#include <stdio.h>
#include <string.h>

/* name: NULL if there is no region yet. */
static int refuse(const char *call, const char *name, const char *why) {
  char text[1024];
  if (name) snprintf(text, sizeof text, "%s: region \"%.255s\": %s", call, name, why);
  else snprintf(text, sizeof text, "%s: %s", call, why);
  return orc_refuse(ORC_INVALID, text);
}

/* The element type, if it is one of ours; ORC_BYTES for characters, logicals and derived types. */
static int dtype_of(const CFI_cdesc_t *u) {
  if (u->type == CFI_type_float && u->elem_len == 4) return ORC_F32;
  if (u->type == CFI_type_double && u->elem_len == 8) return ORC_F64;
  if (u->type == CFI_type_float_Complex && u->elem_len == 8) return ORC_C64;
  if (u->type == CFI_type_double_Complex && u->elem_len == 16) return ORC_C128;
  if (u->type == CFI_type_int8_t && u->elem_len == 1) return ORC_I8;
  if (u->type == CFI_type_int16_t && u->elem_len == 2) return ORC_I16;
  if (u->type == CFI_type_int32_t && u->elem_len == 4) return ORC_I32;
  if (u->type == CFI_type_int64_t && u->elem_len == 8) return ORC_I64;
  return ORC_BYTES;
}

/* What both calls refuse; *count gets the number of elements, *contiguous whether no gap is between
 * them. */
static int examine(const char *call, const char *name, const CFI_cdesc_t *u, size_t *count,
                   int *contiguous) {
  CFI_index_t expected = (CFI_index_t)u->elem_len;
  *count = 1;
  *contiguous = 1;
  for (int i = 0; i < u->rank; i++) {
    CFI_index_t extent = u->dim[i].extent;
    if (extent < 0)
      return refuse(call, name,
                    "an assumed-size array u(*) has no known extent. Next: pass u(1:n), or declare "
                    "its shape");
    if (extent != 1 && u->dim[i].sm != expected) *contiguous = 0;
    expected *= extent;
    *count *= (size_t)extent;
  }
  if (*count == 0) *contiguous = 1;
  if (*count > 0 && !u->base_addr)
    return refuse(call, name, "the argument is not allocated or not associated");
  return ORC_OK;
}

int orc_fortran_protect(orc_session *s, const char *name, CFI_cdesc_t *u, int flags) {
  size_t count;
  int contiguous, dtype = dtype_of(u);
  int status = examine("orc_protect", name, u, &count, &contiguous);
  if (status != ORC_OK) return status;
  if (!contiguous)
    return refuse("orc_protect", name,
                  "the argument is not contiguous (an array section with gaps). Next: pass the whole "
                  "array, or the section to orc_protect_array");
  if (dtype == ORC_BYTES) count *= u->elem_len;
  /* One dimension is the number of elements; that of bytes would not be the program's. */
  if (dtype == ORC_BYTES || u->rank < 2 || u->rank > 8)
    return orc_protect(s, name, u->base_addr, dtype, count, flags);
  orc_array a;
  memset(&a, 0, sizeof a);
  a.struct_size = sizeof a;
  a.dtype = dtype;
  a.ndim = u->rank;
  /* Fortran's first index varies fastest, C's last. */
  for (int i = 0; i < u->rank; i++) a.local[u->rank - 1 - i] = u->dim[i].extent;
  return orc_protect_array(s, name, u->base_addr, &a, flags);
}

/* Which elements of a global array an argument is, and how it lies in memory. */
static int part_of(const char *call, const char *name, const CFI_cdesc_t *u, const int64_t *global,
                   int nglobal, const int64_t *offset, int noffset, orc_array *a) {
  size_t count;
  int contiguous, status = examine(call, name, u, &count, &contiguous);
  if (status != ORC_OK) return status;
  if (u->rank < 1 || u->rank > 8)
    return refuse(call, name, "the argument does not have 1 to 8 dimensions. Next: orc_protect for scalars");
  if (nglobal != u->rank || noffset != u->rank)
    return refuse(call, name, "global and offset need one number for each dimension of the argument");
  memset(a, 0, sizeof *a);
  a->struct_size = sizeof *a;
  a->dtype = dtype_of(u);
  a->ndim = u->rank;
  if (a->dtype == ORC_BYTES && u->elem_len != 1)
    return refuse(call, name,
                  "the elements are neither integer, real nor complex of a known kind. Next: "
                  "orc_protect, which stores bytes");
  /* Fortran's first index varies fastest, C's last. */
  for (int i = 0; i < u->rank; i++) {
    int k = u->rank - 1 - i;
    a->global[k] = global[i];
    a->offset[k] = offset[i];
    a->local[k] = u->dim[i].extent;
    if (contiguous) continue;
    CFI_index_t sm = u->dim[i].sm, elem_len = (CFI_index_t)u->elem_len;
    if (u->dim[i].extent > 1 && (sm <= 0 || sm % elem_len != 0))
      return refuse(call, name,
                    "the section runs backwards or its elements are not a whole number of elements "
                    "apart. Next: pass a section with positive steps of a plain array");
    a->stride[k] = sm > 0 ? sm / elem_len : 1;
  }
  return ORC_OK;
}

int orc_fortran_protect_array(orc_session *s, const char *name, CFI_cdesc_t *u,
                              const int64_t *global, int nglobal, const int64_t *offset,
                              int noffset, int flags) {
  orc_array a;
  int status = part_of("orc_protect_array", name, u, global, nglobal, offset, noffset, &a);
  if (status != ORC_OK) return status;
  return orc_protect_array(s, name, u->base_addr, &a, flags);
}

int orc_fortran_box(orc_box *box, CFI_cdesc_t *u, const int64_t *global, int nglobal,
                    const int64_t *offset, int noffset) {
  box->address = u->base_addr;
  return part_of("orc_add_box", NULL, u, global, nglobal, offset, noffset, &box->array);
}

/* The last dimension counts the items, which are what C's first dimension counts. */
int orc_fortran_protect_list(orc_session *s, const char *name, CFI_cdesc_t *u, int flags) {
  static const char call[] = "orc_protect_list";
  size_t count;
  int64_t item[8];
  int contiguous, dtype = dtype_of(u), status = examine(call, name, u, &count, &contiguous);
  if (status != ORC_OK) return status;
  if (u->rank < 1 || u->rank > 8)
    return refuse(call, name, "the argument does not have 1 to 8 dimensions; the last one counts the items");
  if (!contiguous)
    return refuse(call, name,
                  "the argument is not contiguous (an array section with gaps). Next: pass u(:n), or a "
                  "copy");
  if (dtype == ORC_BYTES && u->elem_len != 1)
    return refuse(call, name,
                  "the elements are neither integer, real nor complex of a known kind. Next: store "
                  "numbers, one list for each component");
  const int last = u->rank - 1;
  for (int i = 0; i < last; i++) item[last - 1 - i] = u->dim[i].extent;
  return orc_protect_list(s, name, u->base_addr, dtype, item, last, (size_t)u->dim[last].extent, flags);
}

/* Shape of a stored region in Fortran's order. */
int orc_fortran_stored(orc_session *s, const char *name, int *dtype, int *ndim, int64_t *global,
                       int64_t *offset, int64_t *local, int64_t *len_bytes) {
  orc_array a;
  size_t len = 0;
  memset(&a, 0, sizeof a);
  a.struct_size = sizeof a;
  int status = orc_stored(s, name, &a, &len);
  *dtype = a.dtype;
  *ndim = a.ndim;
  *len_bytes = (int64_t)len;
  for (int i = 0; i < a.ndim; i++) {
    int k = a.ndim - 1 - i;
    global[i] = a.global[k];
    offset[i] = a.offset[k];
    local[i] = a.local[k];
  }
  return status;
}

int orc_fortran_open(orc_session **s, const char *job, const char *options) {
  return orc_open(s, job, NULL, options);
}

int orc_fortran_mpi_open(orc_session **s, int comm, const char *job, const char *options) {
#ifdef ORC_NO_MPI
  (void)comm, (void)job, (void)options;
  *s = NULL;
  return orc_refuse(ORC_UNSUPPORTED,
                    "orc_mpi_open: orcheck_fortran.c was compiled with ORC_NO_MPI. Next: compile it "
                    "with mpicc");
#else
  return orc_mpi_open(s, MPI_Comm_f2c((MPI_Fint)comm), job, options);
#endif
}

/* Ends all ranks where MPI runs; otherwise the caller ends the program. */
void orc_fortran_abort(void) {
#ifndef ORC_NO_MPI
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized && !finalized) orc_mpi_end();
#endif
}

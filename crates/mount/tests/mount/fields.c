/* Ranks that write one file together, as MPI-IO, parallel HDF5 and parallel NetCDF do, and read it.
 *
 * usage: fields write|read mpi-io|hdf5|netcdf FILE
 *
 * The file has a field of ROWS rows, dealt to the ranks; each element is its index. HDF5 writes it
 * twice: by all ranks together, and in chunks by each rank alone. */
#include <hdf5.h>
#include <mpi.h>
#include <netcdf.h>
#include <netcdf_par.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 512, COLUMNS = 257, CHUNK = 32 };

static int rank, ranks;
static long first, rows;
static double *field;

#define CHECK(done)                                                                              \
  do {                                                                                           \
    if (!(done)) {                                                                               \
      fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #done);                          \
      MPI_Abort(MPI_COMM_WORLD, 1);                                                              \
    }                                                                                            \
  } while (0)

static double element(long row, long column) { return (double)(row * COLUMNS + column) + 0.5; }

static void fill(void) {
  for (long row = 0; row < rows; row++)
    for (long column = 0; column < COLUMNS; column++)
      field[row * COLUMNS + column] = element(first + row, column);
}

static void compare(void) {
  for (long row = 0; row < rows; row++)
    for (long column = 0; column < COLUMNS; column++)
      CHECK(field[row * COLUMNS + column] == element(first + row, column));
  memset(field, 0, sizeof *field * rows * COLUMNS);
}

static void mpi_io(const char *path, int writes) {
  MPI_File file;
  int mode = writes ? MPI_MODE_CREATE | MPI_MODE_WRONLY : MPI_MODE_RDONLY;
  CHECK(!MPI_File_open(MPI_COMM_WORLD, path, mode, MPI_INFO_NULL, &file));
  MPI_Offset at = first * COLUMNS * sizeof *field;
  int count = (int)(rows * COLUMNS);
  if (writes) {
    CHECK(!MPI_File_write_at_all(file, at, field, count, MPI_DOUBLE, MPI_STATUS_IGNORE));
    CHECK(!MPI_File_sync(file));
  } else {
    CHECK(!MPI_File_read_at_all(file, at, field, count, MPI_DOUBLE, MPI_STATUS_IGNORE));
    compare();
  }
  CHECK(!MPI_File_close(&file));
}

static void hdf5(const char *path, int writes) {
  hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  CHECK(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL) >= 0);
  hid_t file = writes ? H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access)
                      : H5Fopen(path, H5F_ACC_RDONLY, access);
  CHECK(file >= 0);
  hsize_t shape[] = {ROWS, COLUMNS}, part[] = {(hsize_t)rows, COLUMNS};
  hsize_t offset[] = {(hsize_t)first, 0}, chunk[] = {CHUNK, CHUNK};
  for (int together = 0; together < 2; together++) {
    const char *name = together ? "together" : "alone";
    hid_t space = H5Screate_simple(2, shape, NULL), memory = H5Screate_simple(2, part, NULL);
    hid_t how = H5Pcreate(H5P_DATASET_CREATE), transfer = H5Pcreate(H5P_DATASET_XFER);
    if (!together) CHECK(H5Pset_chunk(how, 2, chunk) >= 0);
    CHECK(H5Pset_dxpl_mpio(transfer, together ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT) >= 0);
    hid_t set = writes ? H5Dcreate(file, name, H5T_IEEE_F64LE, space, H5P_DEFAULT, how, H5P_DEFAULT)
                       : H5Dopen(file, name, H5P_DEFAULT);
    CHECK(set >= 0);
    CHECK(H5Sselect_hyperslab(space, H5S_SELECT_SET, offset, NULL, part, NULL) >= 0);
    if (writes) {
      CHECK(H5Dwrite(set, H5T_NATIVE_DOUBLE, memory, space, transfer, field) >= 0);
    } else {
      CHECK(H5Dread(set, H5T_NATIVE_DOUBLE, memory, space, transfer, field) >= 0);
      compare();
    }
    H5Dclose(set), H5Pclose(transfer), H5Pclose(how), H5Sclose(memory), H5Sclose(space);
  }
  CHECK(H5Fclose(file) >= 0);
  H5Pclose(access);
}

static void netcdf(const char *path, int writes) {
  int file, set, dims[2];
  if (writes) {
    CHECK(!nc_create_par(path, NC_NETCDF4, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    CHECK(!nc_def_dim(file, "row", ROWS, &dims[0]) && !nc_def_dim(file, "column", COLUMNS, &dims[1]));
    CHECK(!nc_def_var(file, "field", NC_DOUBLE, 2, dims, &set) && !nc_enddef(file));
  } else {
    CHECK(!nc_open_par(path, NC_NOWRITE, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    CHECK(!nc_inq_varid(file, "field", &set));
  }
  size_t start[] = {(size_t)first, 0}, count[] = {(size_t)rows, COLUMNS};
  CHECK(!nc_var_par_access(file, set, NC_COLLECTIVE));
  if (writes) {
    CHECK(!nc_put_vara_double(file, set, start, count, field));
  } else {
    CHECK(!nc_get_vara_double(file, set, start, count, field));
    compare();
  }
  CHECK(!nc_close(file));
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  CHECK(argc == 4);
  first = (long)ROWS * rank / ranks;
  rows = (long)ROWS * (rank + 1) / ranks - first;
  field = calloc(rows * COLUMNS, sizeof *field);
  CHECK(field);
  int writes = !strcmp(argv[1], "write");
  if (writes) fill();
  if (!strcmp(argv[2], "mpi-io")) mpi_io(argv[3], writes);
  if (!strcmp(argv[2], "hdf5")) hdf5(argv[3], writes);
  if (!strcmp(argv[2], "netcdf")) netcdf(argv[3], writes);
  free(field);
  MPI_Finalize();
  return 0;
}

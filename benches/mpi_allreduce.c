// The time of the MPI library's own all-reduce of 64 MiB, beside which that of the program is measured:
//   mpicc -O2 -o target/mpi_allreduce benches/mpi_allreduce.c && mpirun -n 2 target/mpi_allreduce
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 16 << 20, ROUNDS = 15 };

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int rank, size;
    double seconds[ROUNDS];
    float *numbers = malloc(COUNT * sizeof(float));
    if (!numbers) return 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < COUNT; i++) numbers[i] = 1e-30f;
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double started = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, numbers, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        seconds[round] = MPI_Wtime() - started;
    }
    qsort(seconds, ROUNDS, sizeof(double), ascending);
    if (rank == 0)
        printf("the library's own all-reduce of 64 MiB, %d ranks: %.1f ms, %.2f GB/s of buffer\n", size,
               seconds[ROUNDS / 2] * 1e3, COUNT * sizeof(float) / 1e9 / seconds[ROUNDS / 2]);
    MPI_Finalize();
    free(numbers);
}

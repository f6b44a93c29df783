/* The demo: heat spreads over a plate that is cut into one block for each rank.
 *
 * A Cartesian grid of ranks, halos by derived datatypes, exchanges that overlap with computing, a residual by
 * allreduce. At the end rank 0 gathers the plate, draws it as a PNG, and compares it with the serial result.
 *
 *     mpicc -O2 heat.c -lm -o heat && mpirun -n 4 ./heat [picture.png [cells [steps]]]
 */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How fast heat spreads in one step; up to 0.25 is stable. */
#define SPREAD 0.24

/* A block of the plate: rows by cols cells, and a frame of one cell around them. */
struct block {
    int row, col;   /* where it begins on the plate */
    int rows, cols; /* its size */
    double *now, *next;
};

static double *cell(const struct block *b, double *plane, int r, int c)
{
    return plane + (size_t)(r + 1) * (b->cols + 2) + c + 1;
}

static void *reserve(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL) {
        fprintf(stderr, "heat: no memory for %zu cells\n", count);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

/* The first of `count` cells that part `part` of `parts` has. */
static int begin_of(int count, int part, int parts)
{
    return (int)((long)count * part / parts);
}

/* Warm discs on a cold plate. */
static double first_heat(int r, int c, int n)
{
    static const double discs[][4] = {/* y, x, radius, heat */
                                      {0.50, 0.50, 0.16, 1.0}, {0.22, 0.24, 0.09, 0.8}, {0.24, 0.74, 0.11, 0.6},
                                      {0.77, 0.26, 0.12, 0.7}, {0.78, 0.77, 0.08, 0.9}, {0.50, 0.50, 0.08, 0.1}};
    double y = (r + 0.5) / n, x = (c + 0.5) / n, heat = 0.0;
    for (size_t i = 0; i < sizeof discs / sizeof *discs; i++) {
        double dy = y - discs[i][0], dx = x - discs[i][1];
        if (dy * dy + dx * dx < discs[i][2] * discs[i][2])
            heat = discs[i][3];
    }
    return heat;
}

static struct block make_block(int n, int row, int col, int rows, int cols)
{
    struct block b = {row, col, rows, cols, NULL, NULL};
    size_t count = (size_t)(rows + 2) * (cols + 2);
    b.now = reserve(count, sizeof(double));
    b.next = reserve(count, sizeof(double));
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++)
            *cell(&b, b.now, r, c) = first_heat(row + r, col + c, n);
    return b;
}

static void free_block(struct block *b)
{
    free(b->now);
    free(b->next);
}

/* One step on the cells of rows r0 to r1 and columns c0 to c1; returns the largest change. */
static double update(const struct block *b, int r0, int r1, int c0, int c1)
{
    double most = 0.0;
    int stride = b->cols + 2;
    for (int r = r0; r < r1; r++) {
        const double *u = cell(b, b->now, r, 0);
        double *v = cell(b, b->next, r, 0);
        for (int c = c0; c < c1; c++) {
            double change = SPREAD * (u[c - stride] + u[c + stride] + u[c - 1] + u[c + 1] - 4.0 * u[c]);
            v[c] = u[c] + change;
            change = fabs(change);
            most = change > most ? change : most;
        }
    }
    return most;
}

static void swap(struct block *b)
{
    double *next = b->now;
    b->now = b->next;
    b->next = next;
}

/* Neighbours, and the datatypes of a row and of a column of the block. */
struct halo {
    MPI_Comm grid;
    int up, down, left, right;
    MPI_Datatype row, column;
};

static struct halo make_halo(MPI_Comm grid, const struct block *b)
{
    struct halo h = {.grid = grid};
    MPI_Cart_shift(grid, 0, 1, &h.up, &h.down);
    MPI_Cart_shift(grid, 1, 1, &h.left, &h.right);
    MPI_Type_contiguous(b->cols, MPI_DOUBLE, &h.row);
    MPI_Type_vector(b->rows, 1, b->cols + 2, MPI_DOUBLE, &h.column);
    MPI_Type_commit(&h.row);
    MPI_Type_commit(&h.column);
    return h;
}

/* Starts the exchange of all four edges. */
static void exchange(const struct halo *h, const struct block *b, MPI_Request requests[8])
{
    double *u = b->now;
    int last_row = b->rows - 1, last_col = b->cols - 1;
    MPI_Irecv(cell(b, u, -1, 0), 1, h->row, h->up, 0, h->grid, &requests[0]);
    MPI_Irecv(cell(b, u, b->rows, 0), 1, h->row, h->down, 1, h->grid, &requests[1]);
    MPI_Irecv(cell(b, u, 0, -1), 1, h->column, h->left, 2, h->grid, &requests[2]);
    MPI_Irecv(cell(b, u, 0, b->cols), 1, h->column, h->right, 3, h->grid, &requests[3]);
    MPI_Isend(cell(b, u, last_row, 0), 1, h->row, h->down, 0, h->grid, &requests[4]);
    MPI_Isend(cell(b, u, 0, 0), 1, h->row, h->up, 1, h->grid, &requests[5]);
    MPI_Isend(cell(b, u, 0, last_col), 1, h->column, h->right, 2, h->grid, &requests[6]);
    MPI_Isend(cell(b, u, 0, 0), 1, h->column, h->left, 3, h->grid, &requests[7]);
}

/* One step: the inner cells while the edges travel, then the outer ones. */
static double step(const struct halo *h, struct block *b)
{
    MPI_Request requests[8];
    exchange(h, b, requests);
    double most = update(b, 1, b->rows - 1, 1, b->cols - 1);
    MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
    double edges[4] = {update(b, 0, 1, 0, b->cols), update(b, b->rows - 1, b->rows, 0, b->cols),
                       update(b, 1, b->rows - 1, 0, 1), update(b, 1, b->rows - 1, b->cols - 1, b->cols)};
    for (int i = 0; i < 4; i++)
        most = edges[i] > most ? edges[i] : most;
    swap(b);
    return most;
}

/* A rectangle of a plane of doubles as one datatype. */
static MPI_Datatype rectangle(int all_rows, int all_cols, int row, int col, int rows, int cols)
{
    int sizes[2] = {all_rows, all_cols}, part[2] = {rows, cols}, start[2] = {row, col};
    MPI_Datatype type;
    MPI_Type_create_subarray(2, sizes, part, start, MPI_ORDER_C, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    return type;
}

/* The whole plate on rank 0, NULL elsewhere. */
static double *gather(MPI_Comm grid, const struct block *b, int n)
{
    int rank, ranks, where[4] = {b->row, b->col, b->rows, b->cols};
    MPI_Comm_rank(grid, &rank);
    MPI_Comm_size(grid, &ranks);
    int *all = rank == 0 ? reserve(4 * (size_t)ranks, sizeof(int)) : NULL;
    MPI_Gather(where, 4, MPI_INT, all, 4, MPI_INT, 0, grid);

    MPI_Request send;
    MPI_Datatype inner = rectangle(b->rows + 2, b->cols + 2, 1, 1, b->rows, b->cols);
    MPI_Isend(b->now, 1, inner, 0, 9, grid, &send);
    double *plate = NULL;
    if (rank == 0) {
        plate = reserve((size_t)n * n, sizeof(double));
        for (int from = 0; from < ranks; from++) {
            int *at = all + 4 * from;
            MPI_Datatype part = rectangle(n, n, at[0], at[1], at[2], at[3]);
            MPI_Recv(plate, 1, part, from, 9, grid, MPI_STATUS_IGNORE);
            MPI_Type_free(&part);
        }
    }
    MPI_Wait(&send, MPI_STATUS_IGNORE);
    MPI_Type_free(&inner);
    free(all);
    return plate;
}

/* The largest difference between the plate and what one rank alone computes. */
static double difference(const double *plate, int n, int steps)
{
    struct block b = make_block(n, 0, 0, n, n);
    for (int i = 0; i < steps; i++) {
        update(&b, 0, n, 0, n);
        swap(&b);
    }
    double most = 0.0;
    for (int r = 0; r < n; r++)
        for (int c = 0; c < n; c++)
            most = fmax(most, fabs(*cell(&b, b.now, r, c) - plate[(size_t)r * n + c]));
    free_block(&b);
    return most;
}

/* ---- A PNG writer of the plainest kind: stored blocks, no compression. ---- */

struct png {
    FILE *file;
    uint32_t crc, a, b; /* CRC of the chunk; the two sums of Adler-32 */
};

static void put(struct png *p, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        p->crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            p->crc = p->crc & 1 ? 0xEDB88320u ^ (p->crc >> 1) : p->crc >> 1;
    }
    fwrite(bytes, 1, count, p->file);
}

static void put32(struct png *p, uint32_t word)
{
    uint8_t bytes[4] = {word >> 24, word >> 16, word >> 8, word};
    put(p, bytes, 4);
}

static void begin_chunk(struct png *p, const char *type, uint32_t length)
{
    put32(p, length);
    p->crc = 0xFFFFFFFFu;
    put(p, (const uint8_t *)type, 4);
}

static void end_chunk(struct png *p)
{
    put32(p, ~p->crc);
}

/* Black, red, yellow, white. */
static void colour(double heat, uint8_t rgb[3])
{
    for (int i = 0; i < 3; i++) {
        double part = heat * 3.0 - i;
        rgb[i] = (uint8_t)(255.0 * (part < 0.0 ? 0.0 : part > 1.0 ? 1.0 : part));
    }
}

static int write_png(const char *path, const double *plate, int n)
{
    struct png p = {.file = fopen(path, "wb"), .a = 1};
    if (p.file == NULL)
        return 0;
    size_t row_bytes = 1 + 3 * (size_t)n;
    uint8_t *row = reserve(row_bytes, 1);
    double hottest = 1e-9;
    for (size_t i = 0; i < (size_t)n * n; i++)
        hottest = fmax(hottest, plate[i]);

    fwrite("\x89PNG\r\n\x1a\n", 1, 8, p.file);
    begin_chunk(&p, "IHDR", 13);
    put32(&p, n);
    put32(&p, n);
    put(&p, (const uint8_t[]){8, 2, 0, 0, 0}, 5);
    end_chunk(&p);
    begin_chunk(&p, "IDAT", (uint32_t)(2 + n * (5 + row_bytes) + 4));
    put(&p, (const uint8_t[]){0x78, 0x01}, 2);
    for (int r = 0; r < n; r++) {
        for (int c = 0; c < n; c++)
            colour(plate[(size_t)r * n + c] / hottest, row + 1 + 3 * c);
        uint16_t length = (uint16_t)row_bytes, not_length = ~length;
        put(&p, (const uint8_t[]){r == n - 1, length, length >> 8, not_length, not_length >> 8}, 5);
        put(&p, row, row_bytes);
        for (size_t i = 0; i < row_bytes; i++) {
            p.a = (p.a + row[i]) % 65521;
            p.b = (p.b + p.a) % 65521;
        }
    }
    put32(&p, p.b << 16 | p.a);
    end_chunk(&p);
    begin_chunk(&p, "IEND", 0);
    end_chunk(&p);
    free(row);
    return fclose(p.file) == 0;
}

/* ---- */

static int finish(const double *plate, const char *picture, int n, int steps, double seconds)
{
    printf("%.0f million cell updates a second\n", (double)n * n * steps / seconds / 1e6);
    if (!write_png(picture, plate, n)) {
        perror(picture);
        return 1;
    }
    printf("wrote %s\n", picture);
    double off = difference(plate, n, steps);
    printf("largest difference from the serial result: %g\n", off);
    if (off > 1e-12) {
        printf("that is too much: the result is WRONG\n");
        return 1;
    }
    printf("the result is right\n");
    return 0;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    const char *picture = argc > 1 ? argv[1] : "heat.png";
    int n = argc > 2 ? atoi(argv[2]) : 1024, steps = argc > 3 ? atoi(argv[3]) : 1000;
    int ranks, rank, dims[2] = {0, 0}, periods[2] = {0, 0}, at[2];
    MPI_Comm grid;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Dims_create(ranks, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 1, &grid);
    MPI_Comm_rank(grid, &rank);
    MPI_Cart_coords(grid, rank, 2, at);
    if (n < 2 * dims[0] || n < 2 * dims[1] || n > 20000 || steps < 1) {
        if (rank == 0)
            fprintf(stderr, "heat: cells from 2 for each rank to 20000, and at least one step\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int row = begin_of(n, at[0], dims[0]), col = begin_of(n, at[1], dims[1]);
    int rows = begin_of(n, at[0] + 1, dims[0]) - row, cols = begin_of(n, at[1] + 1, dims[1]) - col;
    struct block b = make_block(n, row, col, rows, cols);
    struct halo h = make_halo(grid, &b);
    if (rank == 0)
        printf("%d x %d cells on %d x %d ranks, %d steps\n", n, n, dims[0], dims[1], steps);

    MPI_Barrier(grid);
    double start = MPI_Wtime();
    for (int i = 1; i <= steps; i++) {
        double here = step(&h, &b), residual;
        if (i % ((steps + 9) / 10) != 0 && i != steps)
            continue;
        MPI_Allreduce(&here, &residual, 1, MPI_DOUBLE, MPI_MAX, grid);
        if (rank == 0) {
            printf("step %5d of %d, largest change %.3e\n", i, steps, residual);
            fflush(stdout);
        }
    }
    double seconds = MPI_Wtime() - start;

    double *plate = gather(grid, &b, n);
    int bad = plate != NULL && finish(plate, picture, n, steps, seconds);
    MPI_Bcast(&bad, 1, MPI_INT, 0, grid);
    free(plate);
    free_block(&b);
    MPI_Type_free(&h.row);
    MPI_Type_free(&h.column);
    MPI_Comm_free(&grid);
    MPI_Finalize();
    return bad;
}

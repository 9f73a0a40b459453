// Tiles of 64 x 64 pairs, 4 x 4 of them for each of the 16 x 16 threads of a block.

constexpr int TILE = 64;
constexpr int STEP = 16;  // depth of the operands' tiles in shared memory
constexpr int PER_THREAD = 4;
constexpr int SIDE = TILE / PER_THREAD;  // threads along one side

static_assert(THREADS == SIDE * SIDE, "the block covers a tile");

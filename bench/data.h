/* An attention benchmark's operands, and what its output should be. */
#ifndef HEADWAY_BENCH_DATA_H
#define HEADWAY_BENCH_DATA_H

#include "attention.h"

namespace bench
{

/* A call's arguments but the output; they point into Data. */
struct Call {
    headway_tensor query, key, value;
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    int64_t first = 0; /* the output's first row */
};

/* A shape's inputs, and tensors on them. */
class Data
{
  public:
    explicit Data(const Shape &given);
    Data(const Data &) = delete;
    Data &operator=(const Data &) = delete;

    const Shape &shape() const
    {
        return shape_;
    }
    /* All of it; or, one after the other, the sequences of a shape that wants a call for each. */
    std::vector<Call> calls() const;
    int64_t out_count() const
    {
        return shape_.B * shape_.Lq * shape_.Hq * shape_.Dv;
    }
    /* The rows of `out` that a call computes; out: (B, Lq, Hq, Dv). */
    headway_tensor out_tensor(float *out, const Call &call) const;

    const Call &whole() const
    {
        return whole_;
    }
    const float *bias() const
    {
        return bias_.get();
    }
    const Expected &expected() const
    {
        return expected_;
    }

  private:
    headway_tensor keys(float *data, const int64_t (&extents)[4]) const;
    void options();
    void mask();
    Call sequence(int64_t b) const;
    Call rows(int64_t first, int64_t count);
    void ask_reference(const Call &call);
    void expect();

    Shape shape_;
    Floats query_, key_, value_, bias_;
    std::vector<unsigned char> mask_;
    std::vector<int32_t> interval_;
    std::vector<float> slopes_, sinks_;
    headway_tensor mask_tensor_{}, interval_tensor_{};
    /* Of the rows that the reference is asked about. */
    headway_tensor mask_part_{}, interval_part_{};
    std::vector<int64_t> offsets_;
    Call whole_;
    Expected expected_;
};

} // namespace bench

#endif

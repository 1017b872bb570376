#include "data.h"

#include <algorithm>
#include <cmath>

extern "C" {
#include "oracle/reference.h"
}

namespace bench
{

namespace
{

Floats normal(const int64_t (&extents)[4], uint64_t seed)
{
    const int64_t count = extents[0] * extents[1] * extents[2] * extents[3];
    Floats made = floats(count);
    fill_normal(made.get(), count, seed, 1.0f);
    return made;
}

/* Rows first .. first + count - 1 of axis `axis`. */
headway_tensor slice(headway_tensor tensor, int axis, int64_t first, int64_t count)
{
    const int64_t bytes = tensor.dtype == HEADWAY_BOOL ? 1 : 4;
    tensor.data = static_cast<char *>(tensor.data) + first * tensor.stride[axis] * bytes;
    tensor.shape[axis] = count;
    return tensor;
}

} // namespace

headway_tensor Data::keys(float *data, const int64_t (&extents)[4]) const
{
    headway_tensor tensor = headway_tensor_dense(data, HEADWAY_F32, 4, extents);
    tensor.stride[1] = shape_.key_pitch(extents[3]);
    tensor.stride[2] = shape_.first_key(0, 1, extents[3]);
    return tensor;
}

Data::Data(const Shape &given) : shape_(given)
{
    const int64_t q[] = {shape_.B, shape_.Lq, shape_.Hq, shape_.D};
    const int64_t k[] = {shape_.B, shape_.Lk, shape_.Hkv, shape_.D};
    const int64_t v[] = {shape_.B, shape_.Lk, shape_.Hkv, shape_.Dv};
    query_ = normal(q, 1);
    key_ = normal(k, 2);
    value_ = normal(v, 3);
    whole_.query = headway_tensor_dense(query_.get(), HEADWAY_F32, 4, q);
    whole_.key = keys(key_.get(), k);
    whole_.value = keys(value_.get(), v);
    options();
    expect();
}

void Data::options()
{
    headway_attention_params &params = whole_.params;
    const int64_t Lq = shape_.Lq, Lk = shape_.Lk;
    const size_t heads = static_cast<size_t>(shape_.Hq);
    params.causal = shape_.causal ? HEADWAY_CAUSAL_BOTTOM_RIGHT : HEADWAY_CAUSAL_NONE;
    params.window_left = params.window_right = shape_.window;
    params.softcap = static_cast<float>(shape_.softcap);
    params.sequences = shape_.sequences();
    params.query_starts = shape_.starts.empty() ? nullptr : shape_.starts.data();
    if (shape_.prefix) {
        const int64_t extents[] = {Lq, 2};
        for (int64_t i = 0; i < Lq; i++) {
            interval_.push_back(0);
            interval_.push_back(static_cast<int32_t>(std::min(Lk, std::max(shape_.prefix, i + 1))));
        }
        interval_tensor_ = headway_tensor_dense(interval_.data(), HEADWAY_I32, 2, extents);
        params.interval = &interval_tensor_;
    }
    if (shape_.alibi) {
        slopes_.resize(heads);
        headway_alibi_slopes(shape_.Hq, slopes_.data());
        params.alibi_slopes = slopes_.data();
    }
    if (shape_.sink) {
        sinks_.resize(heads);
        fill_normal(sinks_.data(), shape_.Hq, 5, 1.0f);
        params.sinks = sinks_.data();
    }
    mask();
}

void Data::mask()
{
    const int64_t B = shape_.B, Hq = shape_.Hq, Lq = shape_.Lq, Lk = shape_.Lk;
    const int64_t all[] = {B, Hq, Lq, Lk}, keys[] = {B, 1, 1, Lk};
    if (shape_.biased) {
        bias_ = normal(all, 4);
        mask_tensor_ = headway_tensor_dense(bias_.get(), HEADWAY_F32, 4, all);
    } else if (shape_.holes) {
        for (int64_t head = 0; head < B * Hq; head++)
            for (int64_t i = 0; i < Lq; i++)
                for (int64_t j = 0; j < Lk; j++)
                    mask_.push_back(!shape_.hole(head / Hq, head % Hq, i, j));
        mask_tensor_ = headway_tensor_dense(mask_.data(), HEADWAY_BOOL, 4, all);
    } else if (shape_.masked) {
        for (int64_t b = 0; b < B; b++)
            for (int64_t j = 0; j < Lk; j++)
                mask_.push_back(j < Lk - shape_.masked);
        mask_tensor_ = headway_tensor_dense(mask_.data(), HEADWAY_BOOL, 4, keys);
    }
    if (mask_tensor_.rank)
        whole_.params.mask = &mask_tensor_;
}

Call Data::sequence(int64_t b) const
{
    const Shape one = shape_.sequence(b);
    Call call = whole_;
    call.first = shape_.starts[static_cast<size_t>(b)];
    call.query = slice(call.query, 1, call.first, one.Lq);
    call.key = slice(call.key, 1, call.first, one.Lk);
    call.value = slice(call.value, 1, call.first, one.Lk);
    call.params.sequences = 0;
    call.params.query_starts = nullptr;
    return call;
}

std::vector<Call> Data::calls() const
{
    if (!shape_.each)
        return {whole_};
    std::vector<Call> calls;
    for (int64_t b = 0; b < shape_.sequences(); b++)
        calls.push_back(sequence(b));
    return calls;
}

headway_tensor Data::out_tensor(float *out, const Call &call) const
{
    const int64_t o[] = {shape_.B, shape_.Lq, shape_.Hq, shape_.Dv};
    return slice(headway_tensor_dense(out, HEADWAY_F32, 4, o), 1, call.first, call.query.shape[1]);
}

/* What a call with these query rows alone means, so that their results are the same. */
Call Data::rows(int64_t first, int64_t count)
{
    Call call = whole_;
    if (count == shape_.Lq)
        return call;
    call.first = first;
    call.query = slice(call.query, 1, first, count);
    if (shape_.causal || shape_.window >= 0 || shape_.alibi) {
        offsets_.assign(static_cast<size_t>(shape_.B),
                        first + (shape_.causal ? shape_.Lk - shape_.Lq : 0));
        call.params.row_offsets = offsets_.data();
        if (shape_.causal)
            call.params.causal = HEADWAY_CAUSAL_OFFSETS;
    }
    if (call.params.mask && mask_tensor_.shape[2] > 1) {
        mask_part_ = slice(mask_tensor_, 2, first, count);
        call.params.mask = &mask_part_;
    }
    if (call.params.interval) {
        interval_part_ = slice(interval_tensor_, 0, first, count);
        call.params.interval = &interval_part_;
    }
    return call;
}

void Data::ask_reference(const Call &call)
{
    const int64_t rows = call.query.shape[1], line = shape_.Hq * shape_.Dv;
    const size_t count = static_cast<size_t>(shape_.B * rows * line);
    std::vector<double> values(count), bounds(count);
    headway_reference_out results{};
    results.out = values.data();
    results.out_bound = bounds.data();
    if (headway_reference_attention(&call.params, &call.query, &call.key, &call.value, &results))
        refuse("no memory for the reference");
    for (int64_t b = 0; b < shape_.B; b++) {
        const int64_t to = (b * shape_.Lq + call.first) * line, from = b * rows * line;
        std::copy_n(values.data() + from, rows * line, expected_.values.data() + to);
        std::copy_n(bounds.data() + from, rows * line, expected_.bounds.data() + to);
    }
}

/* The reference says it for as many rows as there is time for. The others' outputs are averages of
 * values at least. */
void Data::expect()
{
    const size_t count = static_cast<size_t>(out_count());
    const int64_t Lq = shape_.Lq, values = shape_.B * shape_.Lk * shape_.Hkv * shape_.Dv;
    float most = 0;
    for (int64_t i = 0; i < values; i++)
        most = std::max(most, std::fabs(value_.get()[i]));
    expected_.values.assign(count, 0.0);
    expected_.bounds.assign(count, 1.001 * static_cast<double>(most));
    /* What the reference computes it looks at pair by pair, excluded or not. */
    const double flops =
        shape_.sequences()
            ? shape_.attention_flops()
            : 2.0 * static_cast<double>(shape_.B * shape_.Hq * (shape_.D + shape_.Dv)) *
                  static_cast<double>(Lq) * static_cast<double>(shape_.Lk);
    const double share = reference_flops / flops;
    if (shape_.sequences()) {
        const int64_t step = std::max<int64_t>(1, std::llround(1 / share));
        for (int64_t b = 0; b < shape_.sequences(); b += step)
            ask_reference(sequence(b));
    } else if (share >= 1) {
        ask_reference(whole_);
    } else {
        const int64_t some = std::max<int64_t>(1, static_cast<int64_t>(share / 3 * double(Lq)));
        for (int64_t first : {int64_t{0}, (Lq - some) / 2, Lq - some})
            ask_reference(rows(first, some));
    }
}

} // namespace bench

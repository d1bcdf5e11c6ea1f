/* A program outside of the project that uses the installed library. */
#include <stdio.h>

#include <leapgrad/tensor.h>

int main(void)
{
    const lg_shape shape = LG_SHAPE(2, 3, 4);
    char text[64];
    printf("%s has %lld elements\n", lg_shape_format(&shape, text, sizeof text),
           (long long)lg_shape_num_elems(&shape));
    return lg_shape_num_elems(&shape) == 24 ? 0 : 1;
}
